"""From trained tensors to an update that may leave the device."""
