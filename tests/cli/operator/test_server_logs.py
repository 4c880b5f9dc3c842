"""`fedloom server logs` against a real API."""

import json
import logging
import time

import pytest
from click.testing import CliRunner

from fedloom.cli.main import main
from fedloom.cli.operator import server_logs
from fedloom.server.metrics.log_buffer import about
from support.door import Door
from support.modules import like

log = logging.getLogger("fedloom.server.story")
log.setLevel(logging.DEBUG)


@pytest.fixture
def door(tmp_path, monkeypatch):
    """A server with lines in its log."""
    monkeypatch.setenv("FEDLOOM_DIR", str(tmp_path / "state"))
    with Door(tmp_path / "state") as door:
        log.addHandler(door.contexts.log_ring)
        log.info("oak attends", extra=about("oak"))
        log.warning("refused [oak]", extra=about("oak", "digits-1", 3))
        log.debug("nothing much")
        yield door
        log.removeHandler(door.contexts.log_ring)


def _logs(*args):
    result = CliRunner().invoke(main, ("server", "logs", *args))
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.long
def test_lines_come_oldest_first_and_filtered(door):
    """The output is like the end of a file."""
    said = _logs().splitlines()
    assert [line.split("story  ")[1] for line in said] == ["oak attends", "refused [oak]"]
    assert "nothing much" in _logs("--level", "debug")
    assert "attends" not in _logs("--run", "digits", "--since", "10m")
    (line,) = json.loads(_logs("--level", "warning", "--json"))["lines"]
    assert (line["client"], line["run"], line["round"]) == ("oak", "digits-1", 3)
    assert _logs("--client", "elm") == ""


def test_following_shows_each_line_once(door, monkeypatch):
    """Also lines with the same timestamp, until interrupted."""
    paces = []

    def pace(_):
        paces.append(1)
        if len(paces) == 1:
            log.info("one", extra=about("oak"))
            log.info("another", extra=about("elm"))
        if len(paces) == 2:
            log.info("two", extra=about("oak"))
        if len(paces) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(server_logs, "time", like(time, sleep=pace))
    said = _logs("--follow", "--client", "oak", "--json").splitlines()
    messages = [json.loads(line)["message"] for line in said]
    assert messages == ["oak attends", "refused [oak]", "one", "two"]
