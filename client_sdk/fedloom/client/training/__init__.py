"""Parts of a local training: client rule, length, progress, checkpoints and ranks."""
