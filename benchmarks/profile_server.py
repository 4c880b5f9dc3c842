"""The server of profile_rounds.py: serve.py with stop-watches on every stage of a round.

Usage: profile_server.py STATE_DIR READY_FILE EVENTS_FILE
"""

import serve  # first: it tunes the allocator before grpc is loaded

# isort: split

import inspect
import os

from fedloom.protocol.updates.body import BodyChecker
from fedloom.server.ledger import Ledger
from fedloom.server.rounds import round_sum
from fedloom.server.rounds.fold import Folder
from fedloom.server.storage.model_store import ModelStore
from fedloom.server.storage.spool import SpoolFile

OF_LEDGER = tuple(
    (Ledger, name, "ledger")
    for name, _ in inspect.getmembers(Ledger, inspect.isfunction)
    if not name.startswith("_") and not inspect.isgeneratorfunction(getattr(Ledger, name))
)
STAGES = (
    (BodyChecker, "feed", "check"),
    (BodyChecker, "finish", "check"),
    (SpoolFile, "append", "write"),
    (SpoolFile, "write_back", "write"),
    (os, "fsync", "sync"),
    (os, "fdatasync", "sync"),
    (Folder, "fold", "fold"),
    (Folder, "save", "checkpoint"),
    (round_sum, "advance", "commit"),
    (ModelStore, "save", "model"),
    (os, "pread", "download"),
    *OF_LEDGER,
)

if __name__ == "__main__":
    serve.main(STAGES)
