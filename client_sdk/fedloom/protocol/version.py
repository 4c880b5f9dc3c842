"""The one place that says which version this is."""

__version__ = "0.1.0"

PROTOCOL_VERSIONS: tuple[int, ...] = (2,)
"""Wire versions that this build speaks, best first. In version 1 offers were not signed: a client
that went back to it could be made to take anybody's."""
