"""The trials of these tests: a learner with a known curve, and its faults."""

import math
import os
import signal
import sys
import time
from pathlib import Path

from fedloom.protocol.errors import UsageError
from fedloom.simulation.output.history import Result, RoundRecord

LEARN = f"{Path(__file__)}:learn"


def accuracy(rate, batch, rounds):
    """Best at a rate of 0.1 and a batch of 32."""
    top = 0.95 - 0.1 * abs(math.log10(rate / 0.1)) - 0.02 * abs(math.log2(batch / 32))
    return top * (1 - 0.5**rounds)


def learn(experiment, settings, on_round, out):
    """A trial's `run`: the settings determine its behaviour."""
    print("the learner prints", os.environ.get("OMP_NUM_THREADS"))
    trouble = settings.get("config.trouble", "")
    if trouble == "usage":
        raise UsageError("Expected something else.")
    if trouble == "crash":
        raise ZeroDivisionError("by zero")
    if trouble == "exit":
        sys.exit(3)
    if trouble == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if trouble == "hang":
        Path(settings["config.file"]).write_text(str(os.getpid()))
        time.sleep(600)
    rate, batch = settings.get("train.learning_rate", 0.1), settings.get("train.batch_size", 32)
    records = []
    for i in range(1, settings.get("rounds", 5) + 1):
        value = math.nan if trouble == "diverge" else accuracy(rate, batch, i)
        test = {} if trouble == "blind" else {"accuracy": value, "loss": 1 - value}
        record = RoundRecord(round=i, trained=i, kind="train", state="committed", test=test)
        records.append(record)
        time.sleep(settings.get("config.pause_s", 0))
        if on_round(record):
            break
    return Result(records=tuple(records), params={}, digest="", folder=None, engine="learner")
