"""The command line: `fedloom`, quick to start on a device, whatever else is installed."""
