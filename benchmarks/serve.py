"""The server of a benchmark: `fedloom.server.app.run` with stop-watches on what blocks.

Usage: serve.py STATE_DIR READY_FILE EVENTS_FILE

Each watched call leaves a line: its name, and when it began and ended by the monotonic clock,
which all processes of a machine share.
"""

import functools
import logging
import os
import sys
import time
from pathlib import Path

from fedloom.server.app import run  # first: it tunes the allocator before grpc is loaded

# isort: split

from fedloom.server.ledger import Ledger
from fedloom.server.rounds.fold import Folder
from fedloom.server.storage.model_store import ModelStore

WATCHED = (
    (os, "fsync"),
    (os, "fdatasync"),
    (Folder, "fold"),
    (Folder, "save"),
    (ModelStore, "save"),
    (Ledger, "check_certificate"),
    (Ledger, "knows_model"),
    (Ledger, "find_update"),
    (Ledger, "accept_all"),
    (Ledger, "open_round"),
    (Ledger, "close_round"),
    (Ledger, "commit_round"),
)


def watch(owner, name, file):
    call = getattr(owner, name)

    @functools.wraps(call)
    def watched(*args, **kwargs):
        begin = time.monotonic()
        try:
            return call(*args, **kwargs)
        finally:
            file.write(f"{name} {begin:.6f} {time.monotonic():.6f}\n")

    setattr(owner, name, watched)


def main():
    state, ready, events = map(Path, sys.argv[1:])
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    with events.open("a", buffering=1) as file:
        for owner, name in WATCHED:
            watch(owner, name, file)
        run(state, ready=ready)


if __name__ == "__main__":
    main()
