"""The web console: server-rendered pages over the same queries and actions as the API."""
