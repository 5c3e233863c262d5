"""The shape of a training step as plain data, without torch."""
