"""The main job end to end: real processes train a real model on handwritten digits."""
