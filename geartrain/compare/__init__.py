"""Comparing strategies: a grid of runs on one engine, a table, a list for JSON, and who wins and why in words."""
