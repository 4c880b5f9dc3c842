"""Ports for servers that are restarted on the same port."""

import random
import socket
import sys

_draw = random.SystemRandom()
"""Not the generator that tests seed: two workers with one seed would take the same ports."""

_given = {}
"""Of each port that this process has, what keeps it from other processes."""


def steady_port():
    """A free port that no other test gets, though nothing listens on it for a while.

    It is below the ephemeral range. It belongs to this process until that ends: a name of an
    abstract Unix socket can be bound once.
    """
    while True:
        port = _draw.randrange(20_000, 30_000)
        if port in _given:
            continue
        claim = socket.socket(socket.AF_UNIX)
        try:
            if sys.platform == "linux":
                claim.bind(f"\0fedloom-test-port-{port}")
            with socket.socket() as sock:
                sock.bind(("127.0.0.1", port))
        except OSError:
            claim.close()
            continue
        _given[port] = claim
        return port


def port_block():
    """The first of 40 ports that `steady_port` does not give."""
    return 10_000 + 40 * (steady_port() % 200)
