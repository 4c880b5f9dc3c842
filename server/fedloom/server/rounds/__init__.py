"""The asyncio drivers of runs and rounds around the pure engine."""
