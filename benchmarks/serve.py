"""The server of a benchmark: `fedloom.server.app.run` with stop-watches on what blocks.

Usage: serve.py STATE_DIR READY_FILE EVENTS_FILE

Each watched call leaves a line, a `stopwatch.Event`.
"""

import logging
import os
import sys
from pathlib import Path

from fedloom.server.app import run  # first: it tunes the allocator before grpc is loaded

# isort: split

from stopwatch import watch

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


def main(watched=WATCHED):
    state, ready, events = map(Path, sys.argv[1:])
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    with events.open("a", buffering=1) as file:
        for owner, name, *label in watched:
            watch(owner, name, file, *label)
        run(state, ready=ready)


if __name__ == "__main__":
    main()
