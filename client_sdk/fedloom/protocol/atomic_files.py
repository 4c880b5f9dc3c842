"""Files that are there whole or not at all: a draft beside them takes their place in the end.

`private_files` does the same for keys, which nobody else may see on the way.

Source: rename(2): an existing file is replaced atomically.
Invariants: whoever opens the file finds the old bytes or the new ones; where anything fails, it is
as it was, and no draft is left. A draft is called `.NAME.PID`, so that no two processes share one.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def drafted(path: Path, *, sync: bool = False) -> Iterator[Path]:
    """Somewhere to write to, which takes the place of `path` once it is written.

    Args:
        path: of the file; its folder is there.
        sync: also after a power loss.

    Raises:
        OSError: the disk says no.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield draft
        if sync:
            with draft.open("rb") as file:
                os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write_whole(path: Path, data: str | bytes, *, sync: bool = False) -> None:
    """Write a file, atomically.

    Args:
        path: of the file; its folder is there.
        data: text is written in UTF-8, with its line ends as they are.
        sync: also after a power loss.

    Raises:
        OSError: the disk says no; the file is as it was.
    """
    with drafted(path, sync=sync) as draft:
        draft.write_bytes(data.encode() if isinstance(data, str) else data)
