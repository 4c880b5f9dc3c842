"""How many files and connections a server may have open, and who may take how many of them.

Every connection is an open file, and so are the ledger, the models and the updates of a round: a
flood of strangers who connect and do nothing must leave those alone. gRPC cuts a connection beyond
its port's limit as it comes, before the handshake; which of two strangers is the good one it cannot
tell, so against floods from few addresses a firewall counts better (docs/deployment.md).
"""

import logging
import resource

log = logging.getLogger(__name__)

MOST = 1 << 20
"""Files that are asked for, where the system sets no limit."""

RESERVED = 2048
"""Files that are not for the fleet's connections: the console's, models, updates, the ledger's."""

ENROLLING = 2048
"""Connections of devices that enrol: each lasts moments, ten seconds at most without a word."""


def raise_limit() -> int:
    """Raise this process's limit of open files to what it may be; return it.

    Shells and containers begin with 1,024 often, which is fewer than a fleet has clients.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft == resource.RLIM_INFINITY:
        return MOST
    if soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError) as error:  # such as macOS, whose true limit is another
            log.info("the limit of open files stays at %d: %s", soft, error)
            return soft
    return max(soft, wanted)


def places(files: int) -> tuple[int, int]:
    """Connections that the fleet's and the enrolment's port may have.

    Args:
        files: that this process may have open.

    >>> places(65536), places(1024)
    ((61440, 2048), (640, 128))
    """
    reserved, enrolling = min(RESERVED, files // 4), min(ENROLLING, files // 8)
    return files - reserved - enrolling, enrolling
