"""Aggregation by a switch, as state machines without input, output or clock: switch, worker, numbers, timer."""
