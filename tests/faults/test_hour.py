"""An hour without a network, for processes whose clocks run thirty times as fast."""

import re
import shutil
import time

import pytest

from support import network
from support.field import NAMES, Field
from support.stage import model, wait

REASON = network.missing() or (
    "" if shutil.which("faketime") else "a faster clock for a process needs faketime"
)
pytestmark = [pytest.mark.e2e, pytest.mark.skipif(bool(REASON), reason=REASON)]

SPEED = 30
HOUR_S = 3600 / SPEED
FAST = ("faketime", "-f", f"+0 x{SPEED}")


def test_a_device_that_was_offline_for_an_hour_is_in_the_next_round(tmp_path):
    """The round continues without it; it reconnects within minutes, and its updates count."""
    cohort = {"goal": 2, "quorum": 1, "deadline_s": 3000.0, "patience_s": 300.0}
    with Field(tmp_path, seed=6, fast=FAST, reconnect_s=60.0) as field:
        stage, log = field.stage, field.stage.devices["far"].log
        initial = model(100_000, seed=1)
        config = {"pause_s": 60.0}
        settings = {"rounds": 1, "cohort": cohort, "config": config}
        run = stage.submit(initial, **settings)
        wait(lambda: stage.phase(run, "far") == "training", "the offer to arrive")
        field.link(cut=True)
        begun = time.monotonic()
        stage.finished(run, HOUR_S)
        counted = stage.judge(run, initial, **settings)
        assert counted == [["near"]]
        time.sleep(max(0.0, HOUR_S - (time.monotonic() - begun)))
        assert len(re.findall("not connected", log())) == 1
        assert len(re.findall("will try again", log())) <= 1
        field.link(cut=False)
        stage.online(2)
        second = model(100_000, seed=2)
        run = stage.submit(second)
        stage.finished(run)
        assert stage.judge(run, second) == [sorted(NAMES)] * 2
