"""The journal: complete entries, limited size, and errors that do not reach the agent."""

import errno
import itertools
import json
import os

import pytest

from fedloom.cli.device.log import COLOURS, line
from fedloom.client.owner import journal
from fedloom.client.owner.journal import EVENTS, Journal


def texts(directory):
    return [entry["text"] for entry in journal.read(directory)]


def test_entries_come_back_in_their_order_with_their_facts(tmp_path):
    """Each is one line, for any text."""
    written = Journal(tmp_path)
    written.note("sent", "Sends 3 B.", run="a-1", tensors=["w", "b"])
    written.note("refused", "line\nbreak and \udcff", run="ü")
    first, second = journal.read(tmp_path)
    assert first["event"] == "sent"
    assert (first["run"], first["tensors"]) == ("a-1", ["w", "b"])
    assert second["text"].startswith("line\nbreak")
    assert first["at"] <= second["at"]
    assert len((tmp_path / "journal.jsonl").read_bytes().splitlines()) == 2


def test_only_the_owner_can_read_the_journal(tmp_path):
    Journal(tmp_path).note("sent", "x")
    assert (tmp_path / "journal.jsonl").stat().st_mode & 0o777 == 0o600


def test_rotation_limits_the_size_and_keeps_the_newest_entries(tmp_path):
    written = Journal(tmp_path, max_bytes=500, keep=2)
    for number in range(100):
        written.note("sent", f"{number}")
    kept = texts(tmp_path)
    assert kept == [f"{number}" for number in range(100)][-len(kept) :]
    assert 10 < len(kept) < 40
    assert len(journal.files(tmp_path)) <= 3
    assert all(path.stat().st_size < 700 for path in journal.files(tmp_path))


def test_a_flood_of_refusals_does_not_displace_sent_entries(tmp_path):
    """After a burst, one a minute is kept; an entry before the next one has the number omitted."""
    now = [0.0]
    written = Journal(tmp_path, clock=lambda: now[0])
    written.note("sent", "Sends 3 B.")
    for _ in range(20_000):
        written.note("refused", "Refused an offer.")
    now[0] += 60
    written.note("refused", "The next minute's.")
    written.note("sent", "Sends 4 B.")
    found = texts(tmp_path)
    assert found[0] == "Sends 3 B."
    assert found[-2:] == ["The next minute's.", "Sends 4 B."]
    assert "19,800 more entries" in found[-3]
    assert len(found) == 1 + 200 + 1 + 2


def test_a_truncated_entry_does_not_damage_the_next(tmp_path):
    """As after a power loss: the next entry begins on a new line."""
    Journal(tmp_path).note("sent", "before")
    with (tmp_path / "journal.jsonl").open("ab") as file:
        file.write(b'{"at": 1, "event": "se')
    Journal(tmp_path).note("sent", "after")
    assert texts(tmp_path) == ["before", "after"]


def test_a_full_disk_is_warned_of_once(tmp_path, monkeypatch, caplog):
    """`note` does not raise, and works again when there is room."""
    written = Journal(tmp_path)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        written.note("sent", "lost")
        written.note("sent", "lost too")
    assert caplog.text.count("cannot be written") == 1
    written.note("sent", "kept")
    assert texts(tmp_path) == ["kept"]


def test_a_half_written_entry_counts_as_lost(tmp_path, monkeypatch, caplog):
    """As on a disk with little room."""
    real = os.write
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", lambda handle, data: real(handle, data[:5]))
        Journal(tmp_path).note("sent", "lost")
    assert "cannot be written" in caplog.text
    Journal(tmp_path).note("sent", "kept")
    assert texts(tmp_path) == ["kept"]


def test_a_symbolic_link_is_not_followed(tmp_path, caplog):
    """A link could make the agent overwrite another file."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder = tmp_path / "state"
    folder.mkdir()
    (folder / "journal.jsonl").symlink_to(victim)
    Journal(folder).note("sent", "x")
    assert victim.read_text() == "precious"


def test_follow_yields_new_entries(tmp_path):
    """Across rotations, and if there is no file yet."""
    written = Journal(tmp_path, max_bytes=300, keep=9)
    followed = journal.follow(tmp_path, every_s=0.0)
    assert next(followed) is None
    seen = []
    for number in range(20):
        written.note("sent", f"{number}")
        seen += [e["text"] for e in itertools.takewhile(lambda e: e is not None, followed)]
    assert seen == [f"{number}" for number in range(20)]


def test_follow_skips_earlier_entries(tmp_path):
    Journal(tmp_path).note("sent", "old")
    followed = journal.follow(tmp_path, every_s=0.0)
    assert next(followed) is None
    Journal(tmp_path).note("sent", "new")
    assert next(followed)["text"] == "new"


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"3", b"{}", b"\xff\xfe", json.dumps({"at": 1}).encode()]
)
def test_lines_that_are_not_entries_are_skipped(tmp_path, raw):
    (tmp_path / "journal.jsonl").write_bytes(raw + b"\n")
    Journal(tmp_path).note("sent", "entry")
    assert texts(tmp_path) == ["entry"]


def test_an_entry_cannot_control_the_terminal(tmp_path):
    """An escape sequence could erase the lines above it."""
    Journal(tmp_path).note("sent", "how w\x1b[1A\x1b[2K\u202e changed")
    (entry,) = journal.read(tmp_path)
    shown = line(entry, "09:00:00")
    assert "\\x1b[1A" in shown
    assert "\u202e" not in shown


def test_every_event_has_a_colour():
    assert COLOURS.keys() == EVENTS.keys()
