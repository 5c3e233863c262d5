"""Many predictions along one or two axes: curves, who wins where, break-even points, and what had no effect."""
