"""`--watch`: shows changes, also across a server's restart."""

import json
import signal
import subprocess

import pytest

from fedloom.cli.connection.event_stream import Event, parse
from fedloom.cli.operator.watch import steady
from support.door import Door
from support.scene import CLI
from support.terminals import Seen


def test_event_stream_is_parsed():
    """Comments, CRLF, data without a name, invalid data, and an incomplete event."""
    lines = [b": hello\n", b"\n", b"event: run\r\n", b'data:{"a":1}\r\n', b"\r\n", b"data: 1\n",
             b"\n", b"event: odd\n", b"data: {\n", b"\n", b"event: cut\n"]  # fmt: skip
    assert list(parse(lines)) == [Event("run", {"a": 1}), Event("odd", None)]


def test_continuously_changing_fields_are_ignored():
    """At any depth of the document."""
    told = {"live": {"round": {"deadline_left_s": 3.0, "accepted": 1}}}
    assert steady(told) == {"live": {"round": {"accepted": 1}}}


def _line(process):
    return json.loads(process.stdout.readline())


@pytest.mark.long
@pytest.mark.parametrize("words", [("run", "list"), ("round", "list"), ("client", "list")])
def test_first_line_is_the_present_state(words, tmp_path):
    """A script needs no other command for it."""
    with Door(tmp_path / "state") as door:
        door.submit(tmp_path)
        command = [*CLI, *words, "--watch", "--json", "--dir", str(door.directory)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert isinstance(_line(process), dict)
            process.terminate()


@pytest.mark.long
def test_lines_continue_after_a_restart_of_the_server(tmp_path):
    """Loss and reconnection are reported on standard error."""
    command = [*CLI, "run", "list", "--watch", "--json", "--dir", str(tmp_path / "state")]
    with Door(tmp_path / "state") as door:
        run = door.submit(tmp_path)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(command, text=True, **pipes)
        assert _line(process)["runs"][0]["id"] == run
        door.ask("POST", f"/runs/{run}/pause")
        assert _line(process)["runs"][0]["state"] == "paused"
    assert "does not answer" in process.stderr.readline()
    (tmp_path / "state" / "pki").rename(tmp_path / "pki")  # the next server creates its own
    with Door(tmp_path / "state") as door:
        assert "is back" in process.stderr.readline()
        door.ask("POST", f"/runs/{run}/stop")
        door.submit(tmp_path)
        assert len(_line(process)["runs"]) >= 1
        process.kill()
        process.communicate()


@pytest.mark.long
def test_table_is_redrawn_in_place(tmp_path):
    """On a terminal, until interrupted with exit 130."""
    with (
        Door(tmp_path / "state") as door,
        Seen(*CLI, "run", "list", "--watch", "--dir", str(door.directory)) as seen,
    ):
        seen.until("No runs yet")
        run = door.submit(tmp_path)
        seen.until(run)
        door.ask("POST", f"/runs/{run}/pause")
        text = seen.until("paused")
        assert (text.count(run), text.count("MODEL")) == (1, 1)
        seen.process.send_signal(signal.SIGINT)
        assert seen.ended() == 130
