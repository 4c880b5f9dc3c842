"""Searches the memory of a process that a test started; Linux only."""

from pathlib import Path

PIECE = 1 << 20
_ZEROS = bytes(PIECE)


def found_in(pid, patterns):
    """The names of those patterns that lie in writable private memory: heaps, stacks, buffers.

    Args:
        pid: of a process of this user.
        patterns: name → bytes.
    """
    found = set()
    longest = max(map(len, patterns.values()))
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for start, stop in _regions(pid):
            for at in range(start, stop, PIECE):
                memory.seek(at)
                try:
                    piece = memory.read(min(PIECE + longest, stop - at))
                except OSError:
                    break  # unmapped meanwhile, or a device's memory
                if _ZEROS.startswith(piece[:PIECE]):
                    continue
                found |= {name for name, raw in patterns.items() if raw in piece}
    return found


def _regions(pid):
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        bounds, mode, *_ = line.split()
        if mode == "rw-p":
            yield tuple(int(bound, 16) for bound in bounds.split("-"))
