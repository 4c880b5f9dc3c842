"""The policy of a device's owner, and the journal of the data that left the device."""
