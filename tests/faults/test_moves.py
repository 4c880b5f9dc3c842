"""Devices find a server by its name after its address has changed."""

import pytest

from support import network
from support.field import NAMES, Field
from support.stage import model, wait

REASON = network.missing()
pytestmark = [pytest.mark.e2e, pytest.mark.skipif(bool(REASON), reason=REASON)]


def _move(field, *, silently):
    """Move the server to 10.77.0.2, with or without a shutdown, and update the name."""
    stage = field.stage
    if silently:
        for device in (1, 2):
            field.network.link(device, cut=True)
    stage.stop_server()
    field.network.move(0, "10.77.0.2")
    for side in (1, 2):
        field.network.hosts(side, "10.77.0.2")
    for device in (1, 2):
        field.network.link(device, cut=False)
    stage.start_server()


@pytest.mark.parametrize("silently", [False, True], ids=["with a good-bye", "without a word"])
def test_a_server_that_moves_in_a_round_is_found(tmp_path, silently):
    """Both devices connect to the new address and send their updates.

    Without a word, a device that waits for bytes of the server learns from a ping that it is gone.
    """
    with Field(tmp_path, seed=4, ping_s=20.0) as field:
        stage = field.stage
        initial = model(500_000, seed=3)
        config = {"pause_s": 2.0}
        run = stage.submit(initial, config=config)
        wait(lambda: stage.phase(run, "far") == "training", "the offer to arrive")
        _move(field, silently=silently)
        stage.finished(run)
        assert stage.judge(run, initial, config=config) == [sorted(NAMES)] * 2


def test_a_server_gets_a_new_certificate_for_a_new_name(tmp_path):
    """A name added to server.toml is valid after the restart, like the old one."""
    with Field(tmp_path, seed=5) as field:
        stage = field.stage
        stage.stop_server()
        toml = stage.state / "server.toml"
        toml.write_text(toml.read_text().replace('"fl.test"', '"fl.test", "other.test"'))
        hosts = "127.0.0.1 localhost\n10.77.0.1 fl.test other.test\n"
        for side in (1, 2):
            field.network.write_hosts(side, hosts)
        stage.end("far")
        stage.point("far", f"other.test:{stage.port}")
        stage.start_server()
        field.start("far")
        stage.online(2)
        initial = model(1000, seed=4)
        run = stage.submit(initial)
        stage.finished(run)
        assert stage.judge(run, initial) == [sorted(NAMES)] * 2
