"""Byte streams for tests of noise, made by a hash of their position."""

from hashlib import shake_128


def hashed(key):
    """A stream that follows from a key; each position has its own bytes, like a cipher's."""
    cache = {}

    def stream(purpose, number, position, num_bytes):
        name = f"{key}/{purpose}/{number}".encode()
        until = position + num_bytes
        if len(cache.get(name, b"")) < until:
            cache[name] = shake_128(name).digest(until)
        return cache[name][position:until]

    return stream
