"""Checks of an offer: signature, replay, and limits of its values."""
