"""Models and update bodies in an object store, so that the server's disk is only a cache."""
