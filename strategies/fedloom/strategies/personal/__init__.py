"""Personalisation: tensors that stay on the device, and models of each client's own."""
