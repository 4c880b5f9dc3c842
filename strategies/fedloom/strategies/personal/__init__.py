"""Personalisation: tensors that stay on the device, and own models of clients."""
