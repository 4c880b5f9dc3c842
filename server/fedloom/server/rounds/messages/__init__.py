"""Rounds that carry the messages of a Flower `ServerApp`, and the app itself."""
