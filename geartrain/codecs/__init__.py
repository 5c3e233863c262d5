"""Codecs: what of a gradient goes on the wire, and in which bytes. One file per codec; the contract is in `base`."""
