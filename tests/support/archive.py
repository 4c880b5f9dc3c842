"""A prepared server with history: a long run, its latest models, and a long audit trail."""

import numpy as np

from fedloom.protocol.tensors.container import write_file
from fedloom.server.ledger import Ledger
from fedloom.server.planning.spec import parse
from support.big_ledger import RUN, fill
from support.scene import SPEC


def digest_of(number):
    """The digest of a round's model."""
    return f"{number:064x}"


def tensors(number):
    """The tensors of a round's model."""
    return {"b": np.full(3, number, np.float32), "w": np.arange(12, dtype=np.float32) * number}


def past(state):
    """Fill a state directory before a server starts on it."""
    fill(
        state,
        num_rounds=70,
        cohort=210,
        num_clients=240,
        spec=parse(SPEC | {"rounds": 70}).as_dict(),
    )
    ledger = Ledger.in_directory(state)
    for number in range(120):
        ledger.trail.append("ada" if number % 2 else "eve", "token", "run.note", RUN, {"n": number})
    ledger.close()
    (state / "models").mkdir(exist_ok=True)
    for number in (68, 69, 70):
        write_file(state / "models" / f"{digest_of(number)}.safetensors", tensors(number))
