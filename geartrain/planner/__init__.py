"""Plans: batch, devices, servers, strategy and its settings for a model on a cluster, each with its reason."""
