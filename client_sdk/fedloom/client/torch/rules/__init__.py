"""Client rules in PyTorch: gradient corrections, clusters, models of the client's own."""
