"""The version of this package and of the wire protocol."""

__version__ = "0.1.0"

PROTOCOL_VERSIONS: tuple[int, ...] = (2,)
"""Wire versions that this build speaks, best first. In version 1 offers were not signed: a client
that accepted version 1 could be made to take offers of any peer."""
