"""Ports for servers that are restarted and must get theirs back."""

import random
import socket


def steady_port():
    """A free port that no outgoing connection is given meanwhile: below the ephemeral range."""
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as sock:
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
