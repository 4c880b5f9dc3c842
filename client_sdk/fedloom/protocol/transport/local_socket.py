"""The path of a server's operator socket, and its address for the kernel.

A Unix socket's address holds at most 107 bytes on Linux (unix(7)), and paths of state directories
are often longer. Then the address uses the open descriptor of the folder, which is always short.
The alternative, changing the working directory, would change it for every thread.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedloom.protocol.errors import UsageError

NAME = "control.sock"
MAX_BYTES = 107


@contextmanager
def address(path: Path) -> Iterator[str]:
    """Yield an address of the socket at `path`, valid while the context is open.

    Raises:
        UsageError: the path is too long for this system.
        OSError: the folder cannot be opened.
    """
    if len(os.fsencode(path)) <= MAX_BYTES:
        yield str(path)
        return
    descriptors = Path("/proc/self/fd")
    if sys.platform == "win32" or not descriptors.is_dir():
        raise UsageError(
            f"Expected a socket path of at most {MAX_BYTES} bytes, got {path}: "
            "choose a state directory with a shorter path."
        )
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield str(descriptors / str(folder) / path.name)
    finally:
        os.close(folder)
