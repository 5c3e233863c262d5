"""How far what is predicted can be believed: simulated against emulated and real runs, and against published figures."""
