"""What a local training uses: client rule, length, progress, checkpoints and ranks."""
