"""An app whose `ServerApp` sends messages of its own, and trains by a strategy of Flower."""
