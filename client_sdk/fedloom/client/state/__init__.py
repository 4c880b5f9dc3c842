"""The state directory: identity, models, updates to send, health and lock."""
