"""Networks that are really there: namespaces joined by shaped links on one machine, and processes inside them."""
