"""Ports for servers that are restarted on the same port."""

import random
import socket

_draw = random.SystemRandom()
"""Not the generator that tests seed: two workers with one seed would take the same ports."""

_given = set()


def steady_port():
    """A free port that no other caller gets: below the ephemeral range, and only once."""
    while True:
        port = _draw.randrange(20_000, 30_000)
        if port in _given:
            continue
        with socket.socket() as sock:
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                continue
            _given.add(port)
            return port
