"""Moves a stopped server to another database and another store, with its open rounds."""
