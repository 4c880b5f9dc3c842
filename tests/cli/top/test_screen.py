"""`fedloom top` on a real terminal with a real server."""

import signal
import sys
import termios

import pytest

from support.door import Door
from support.scene import CLI, Scene
from support.terminals import Seen


@pytest.fixture
def door(tmp_path):
    """A server with one run that waits for clients."""
    with Door(tmp_path / "state") as door:
        door.submit(tmp_path)
        yield door


def _top(state, **settings):
    return Seen(*CLI, "top", "--dir", str(state), **settings)


@pytest.mark.long
def test_keys_work_and_the_terminal_is_restored(door):
    """In monochrome ASCII: help, a cancelled pause, a confirmed pause, a resize, and quit."""
    env = {"NO_COLOR": "1", "PYTHONIOENCODING": "ascii", "TERM": "vt100"}
    with _top(door.directory, env=env) as top:
        text = top.until("digits-")
        assert "selecting, waits for 2 clients" in text
        assert text.isascii()
        top.send("?")
        top.until("the server refused the update")
        top.send("?p")
        assert "opens no further round" in top.until("Press y")
        top.send("n")
        top.until("Nothing was done.")
        top.send("py")
        top.until("Done:")
        top.until("  paused")
        top.resize(100, 30)
        top.until(lambda text: text.rstrip("\n").count("\n") == 29 and text.endswith("q quit"))
        top.send("q")
        assert top.ended() == 0
        assert top.received.endswith(b"\x1b[?1049l")
        assert b"\x1b[3" not in top.received.replace(b"\x1b[3;", b"").replace(b"\x1b[30;", b"")
        assert termios.tcgetattr(top._slave) == top.before


@pytest.mark.long
def test_signal_restores_the_terminal(door):
    """SIGTERM."""
    with _top(door.directory) as top:
        top.until("digits-")
        top.process.send_signal(signal.SIGTERM)
        assert top.ended() == 128 + signal.SIGTERM
        assert top.received.endswith(b"\x1b[?1049l")
        assert termios.tcgetattr(top._slave) == top.before


@pytest.mark.long
def test_unchanged_lines_are_not_painted(door):
    """On an idle server only the clock is painted, so the screen does not flicker."""
    with _top(door.directory) as top:
        top.until("digits-")
        top.read(0.5)
        top.received = b""
        for _ in range(8):
            top.read(0.25)
        assert b"digits-" not in top.received
        assert top.received.count(b"H") < 12
        assert b"\x1b[2J" not in top.received


@pytest.mark.long
def test_live_view_survives_a_restart_of_the_server(tmp_path):
    """Members, rounds and refusals are shown before and after kill -9 of the server."""
    with Scene(tmp_path / "scene", names=("oak", "elm", "ash", "bad-1")) as scene:
        run = scene.submit(rounds=500, cohort={"goal": 3, "quorum": 2, "deadline_s": 60.0})
        with _top(scene.state, size=(80, 24)) as top:
            top.until(run)
            top.until("training")
            top.until("bad-1  not_finite")
            top.until("quorum 2")
            top.until("left")
            top.send("\r")
            top.until("accuracy")
            scene.kill_server()
            top.until("has not answered")
            before = scene_round(top.text)
            scene.start_server()
            top.until(lambda text: "has not answered" not in text)
            top.until(lambda text: scene_round(text) > before)
            top.send("q")
            assert top.ended() == 0


def scene_round(text):
    """The number of the open round on the screen; 0 without one."""
    found = [line for line in text.splitlines() if "─ round " in line]
    return int(found[0].split("round ")[1].split()[0]) if found else 0


@pytest.mark.long
def test_without_a_terminal_an_option_is_required(door):
    """--once prints one screen, --json data; else exit 2."""
    import json
    import subprocess

    def run(*words):
        words = [*CLI, "top", "--dir", str(door.directory), *words]
        return subprocess.run(words, capture_output=True, text=True, check=False)

    refused = run()
    assert (refused.returncode, "--once" in refused.stderr) == (2, True)
    assert "digits-" in run("--once").stdout
    assert json.loads(run("--json").stdout)["clients_online"] == 0


def test_missing_server_is_an_error_before_painting(tmp_path):
    """Exit 2, and the terminal is unchanged."""
    with Seen(sys.executable, *CLI[1:], "top", "--dir", str(tmp_path)) as top:
        assert top.ended() == 2
        assert b"\x1b" not in top.received
