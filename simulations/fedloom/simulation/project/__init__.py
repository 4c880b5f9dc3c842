"""`fedloom up`: the federation of one folder, on this machine."""
