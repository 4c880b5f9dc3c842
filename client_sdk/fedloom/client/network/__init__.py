"""The connection to the server, transfers, and the diagnosis of failures."""
