"""The web console: pages rendered here, over the same parts as the API."""
