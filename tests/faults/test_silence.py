"""Both sides notice a silent loss of the network within a bounded time.

gRPC's pings detect it: after `ping_s` of silence, with 20 s to answer.
"""

import pytest

from support import network
from support.field import NAMES, Field
from support.stage import model, wait

REASON = network.missing()
pytestmark = [pytest.mark.e2e, pytest.mark.skipif(bool(REASON), reason=REASON)]

PING_S = 30.0
NOTICED_S = PING_S + 10.0 + 20.0 + 40.0
"""By the server too; with time for a busy machine."""


def test_both_sides_notice_the_loss_of_the_network(tmp_path):
    """An idle connection is cut: the server counts one device less, the device logs the loss."""
    with Field(tmp_path, seed=2, ping_s=PING_S) as field:
        stage, log = field.stage, field.stage.devices["far"].log
        field.link(cut=True)
        wait(lambda: len(_online(stage)) == 1, "the server to notice", NOTICED_S)
        wait(lambda: "not connected" in log(), "the device to notice", NOTICED_S)
        field.link(cut=False)
        stage.online(2)
        initial = model(1000, seed=1)
        run = stage.submit(initial)
        stage.finished(run)
        assert stage.judge(run, initial) == [sorted(NAMES)] * 2


def test_an_upload_continues_after_a_change_of_the_device_address(tmp_path):
    """The device connects from the new address, and the update counts."""
    with Field(tmp_path, seed=3, ping_s=PING_S) as field:
        stage = field.stage
        field.network.limit(1, "4mbit")  # 1.5 MiB take three seconds
        initial = model(1 << 20, seed=2)
        before = field.link()["passed"]["up"]
        run = stage.submit(initial, rounds=3)
        wait(lambda: field.link()["passed"]["up"] - before > 300_000, "the middle of the upload")
        field.network.move(1, "10.77.1.2")
        stage.finished(run, NOTICED_S)
        assert stage.judge(run, initial, rounds=3) == [sorted(NAMES)] * 3


def _online(stage):
    return [None] * stage.control().get("server")["clients_online"]
