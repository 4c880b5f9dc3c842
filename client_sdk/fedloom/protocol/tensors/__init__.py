"""Tensors as bytes: the safetensors container, checks of values, differences between models."""
