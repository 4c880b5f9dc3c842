"""The program of a site in tests, with faults if a test sets them.

FAULT=die: rank 1 is killed in its third batch, the first time. FAULT=hang: it stops there.
FAULT=slow: every batch takes a while and is recorded in a file.
"""

import os
import signal
import time
from pathlib import Path

import torch

from fedloom.client.torch import TorchClient
from support.site_cases import data, linear

RESTARTED = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
FAULT = "" if RESTARTED else os.environ.get("FAULT", "")
RANK = os.environ.get("RANK", "0")
_seen = []


def loss(output, target):
    _seen.append(None)
    if len(_seen) == 3 and RANK == "1" and FAULT in ("die", "hang"):
        os.kill(os.getpid(), signal.SIGKILL if FAULT == "die" else signal.SIGSTOP)
    if FAULT == "slow":
        Path(os.environ["BEGUN"]).touch()
        time.sleep(0.02)
    return torch.nn.functional.cross_entropy(output, target)


client = TorchClient(linear(), data(103, 1), loss, evaluate=data(301, 2))
