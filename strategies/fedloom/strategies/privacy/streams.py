"""The source of noise: named streams of bytes, injected as a function.

The mathematics here neither draws randomness nor holds a key. It gets a `Stream`: on a server the
key stream of a cipher under a secret key, so that the noise cannot be predicted and a crash replays
it; in a simulation the same cipher under a key derived from the seed.

Invariant: the bytes of a stream depend on (key, purpose, round, position) alone, so any block of a
tensor can be computed separately and repeatedly, in any order.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

Stream: TypeAlias = Callable[[str, int, int, int], bytes]
"""(purpose, round, position, num_bytes) → those bytes; the position is a multiple of 16."""

ALIGNMENT: Final = 16
"""Positions are multiples of this many bytes: one block of AES."""
