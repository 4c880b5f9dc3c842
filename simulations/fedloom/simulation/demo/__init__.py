"""The demo: a server and eight client processes train a model on handwritten digits."""
