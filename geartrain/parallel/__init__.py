"""Models cut into stages: plans, orders of blocks, and what runs them; shared by model-parallel strategies."""
