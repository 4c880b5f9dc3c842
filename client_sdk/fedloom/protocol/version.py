"""The version of this package and of the wire protocol."""

__version__ = "0.1.0"

PROTOCOL_VERSIONS: tuple[int, ...] = (3,)
"""Wire versions that a client speaks. In version 2 an offer was not signed for one connection, and
in version 1 not at all: a client that spoke them could be made to accept recorded or forged ones.
"""

NONCE_SINCE = 3
"""The first version whose offers are signed for one connection."""

SERVER_VERSIONS: tuple[int, ...] = (3, 2)
"""Wire versions that a server speaks, best first."""
