"""Data, partitions and runs that emulate a fleet on one machine."""
