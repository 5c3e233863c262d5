"""How far predictions can be believed: simulated against emulated and real runs, and against published figures."""
