"""How runs share a server: their turns in taking clients, and the queue of those that wait."""
