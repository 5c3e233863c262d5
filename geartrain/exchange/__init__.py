"""Exchanges: who gets what of an encoded gradient from whom. One file per exchange; the contract is in `base`."""
