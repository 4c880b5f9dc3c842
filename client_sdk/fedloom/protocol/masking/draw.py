"""The draw of masking sessions from the list of clients that are ready.

Clients are ordered by H("draw", pid, class, all nonces in the order of names, name) and cut into
runs. Whoever recomputes the draw from the same signed list gets the same sessions, so the server
can influence it only by leaving clients out.
"""

from collections.abc import Mapping

from fedloom.protocol.masking.encoding import digest
from fedloom.strategies.masking.sessions import session_sizes


def draw_sessions(
    pid: bytes, coverage: str, nonces: Mapping[str, bytes], group: int
) -> tuple[tuple[str, ...], ...]:
    """Split ready clients into sessions.

    Args:
        pid: of the round's try.
        coverage: the class of all these clients.
        nonces: each client's name → the 32 bytes of its advert.
        group: most members of a session.

    Returns:
        The names of each session, sorted; the larger sessions first.
    """
    names = sorted(nonces)
    together = b"".join(nonces[name] for name in names)
    order = sorted(names, key=lambda name: digest("draw", pid, coverage, together, name))
    drawn, start = [], 0
    for size in session_sizes(len(names), group):
        drawn.append(tuple(sorted(order[start : start + size])))
        start += size
    return tuple(drawn)
