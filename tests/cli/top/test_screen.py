"""`fedloom top` on a real terminal, before a real server."""

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


def test_screen_shows_steers_and_leaves_the_terminal_as_it_was(door):
    """In monochrome ASCII, as on an old console: help, a pause that asks, a question refused."""
    env = {"NO_COLOR": "1", "PYTHONIOENCODING": "ascii", "TERM": "vt100"}
    with _top(door.directory, env=env) as top:
        text = top.until("digits-")
        assert "selecting, waits for 2 clients" in text
        assert text.isascii()
        top.send("?")
        top.until("what was turned away")
        top.send("?p")
        assert "opens no other round" in top.until("Press y")
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


def test_signal_leaves_the_terminal_as_it_was(door):
    """SIGTERM, as of a closing session."""
    with _top(door.directory) as top:
        top.until("digits-")
        top.process.send_signal(signal.SIGTERM)
        assert top.ended() == 128 + signal.SIGTERM
        assert top.received.endswith(b"\x1b[?1049l")
        assert termios.tcgetattr(top._slave) == top.before


def test_what_does_not_change_is_not_painted_again(door):
    """So nothing flickers: a second on a still server is one line, the clock."""
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
def test_live_view_of_a_real_federation_that_is_lost_and_comes_back(tmp_path):
    """Members at work, rounds that pass, a bad client's refusals, kill -9, and all again."""
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


def test_without_a_terminal_it_says_what_to_ask_for(door):
    """Pipes get one screen, scripts get data."""
    import json
    import subprocess

    def run(*words):
        words = [*CLI, "top", "--dir", str(door.directory), *words]
        return subprocess.run(words, capture_output=True, text=True, check=False)

    refused = run()
    assert (refused.returncode, "--once" in refused.stderr) == (2, True)
    assert "digits-" in run("--once").stdout
    assert json.loads(run("--json").stdout)["clients_online"] == 0


def test_no_server_is_an_error_before_anything_is_painted(tmp_path):
    """Exit 2 with what to do, on a terminal that was not touched."""
    with Seen(sys.executable, *CLI[1:], "top", "--dir", str(tmp_path)) as top:
        assert top.ended() == 2
        assert b"\x1b" not in top.received
