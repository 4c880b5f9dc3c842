"""What the owner of a device decides, and the journal of what left it."""
