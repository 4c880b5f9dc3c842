"""The one place that says which version this is."""

__version__ = "0.1.0"

PROTOCOL_VERSIONS: tuple[int, ...] = (1,)
"""Wire versions that this build speaks, best first."""
