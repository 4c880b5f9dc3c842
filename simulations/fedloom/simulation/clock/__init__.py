"""The virtual clock: devices, their availability, and rounds played in simulated time."""
