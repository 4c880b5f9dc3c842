"""Limits on open files and connections, so that a flood of connections leaves files for the rest.

Every connection is an open file, as are the ledger, the models and the updates of a round. gRPC
closes a connection beyond its port's limit before the handshake, whatever its address. Against a
flood from few addresses, use a firewall with limits per address (docs/deployment.md).
"""

import logging
import resource

log = logging.getLogger(__name__)

MOST = 1 << 20
"""Files to request if the system sets no limit."""

RESERVED = 2048
"""Files kept for the console, models, updates and the ledger."""

ENROLLING = 512
"""Connections to the enrolment port: of strangers, each with 50 KiB, for ten seconds at most."""


def raise_limit() -> int:
    """Raise this process's limit of open files as far as allowed; return it.

    Shells and containers often set 1,024, too few for a large fleet.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft == resource.RLIM_INFINITY:
        return MOST
    if soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError) as error:  # such as macOS, whose actual limit is lower
            log.info("the limit of open files stays at %d: %s", soft, error)
            return soft
    return max(soft, wanted)


def places(files: int) -> tuple[int, int]:
    """Connections allowed on the fleet's and on the enrolment port, by the limit of open files.

    >>> places(65536), places(1024)
    ((62976, 512), (640, 128))
    """
    reserved, enrolling = min(RESERVED, files // 4), min(ENROLLING, files // 8)
    return files - reserved - enrolling, enrolling
