"""Steps from trained tensors to an update: validation, clipping and noise, compression."""
