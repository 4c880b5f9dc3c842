"""Client rules in PyTorch: gradient corrections, clusters and personal models."""
