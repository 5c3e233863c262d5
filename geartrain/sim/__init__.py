"""The simulated engine: a virtual clock, a fluid network, and a process group that runs on them."""
