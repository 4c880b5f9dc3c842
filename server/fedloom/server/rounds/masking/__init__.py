"""Masked rounds: what lies between the messages of devices and the sum of each session."""
