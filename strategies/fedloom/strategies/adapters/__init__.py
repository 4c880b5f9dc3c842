"""Low-rank adapters: averaging their products instead of their factors."""
