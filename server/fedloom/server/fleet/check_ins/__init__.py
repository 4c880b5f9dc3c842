"""Devices that check in: they come when told, wait a while for a task, and leave."""
