"""Streams of noise bytes under a secret key: AES-256 in counter mode.

With the key any part of any stream can be computed; without it the stream looks random.

    key of a stream = BLAKE2b-256(purpose ‖ round) under the run's key
    byte i          = byte i of AES-256-CTR of zeros under that key, counter from 0

References:
    NIST SP 800-38A, section 6.5 (counter mode). RFC 7693 (BLAKE2).
"""

import secrets
from functools import lru_cache
from hashlib import blake2b

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR

from fedloom.strategies.privacy.streams import ALIGNMENT, Stream

KEY_BYTES = 32


def new_key() -> bytes:
    """A key from the operating system's secure source."""
    return secrets.token_bytes(KEY_BYTES)


def derived_key(key: bytes, purpose: str) -> bytes:
    """A key for one purpose; it does not reveal the original key."""
    return blake2b(purpose.encode(), key=key, digest_size=KEY_BYTES).digest()


def key_of_seed(seed: int) -> bytes:
    """The key of a simulation, derived from the seed."""
    return blake2b(f"simulated noise {seed}".encode(), digest_size=KEY_BYTES).digest()


def keyed(key: bytes) -> Stream:
    """The streams of a key.

    Args:
        key: 32 bytes.
    """

    @lru_cache(maxsize=64)
    def of(purpose: str, number: int) -> AES256:
        return AES256(derived_key(key, f"{purpose}\0{number}"))

    def stream(purpose: str, number: int, position: int, num_bytes: int) -> bytes:
        if position % ALIGNMENT:
            raise ValueError(f"Expected a position in steps of {ALIGNMENT}, got {position}.")
        counter = (position // ALIGNMENT).to_bytes(16, "big")
        return Cipher(of(purpose, number), CTR(counter)).encryptor().update(bytes(num_bytes))

    return stream
