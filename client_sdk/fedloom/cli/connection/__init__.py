"""How operator commands reach a server: the API client, its events, the default run."""
