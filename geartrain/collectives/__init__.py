"""Collectives written out in sends and receives: one text for every engine, and the same bits on each."""
