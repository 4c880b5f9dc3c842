"""`fedloom new`: a folder with a client, a run and tests that work as they are."""
