"""The owner's log: whole entries, bounded in size, and never in the way."""

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
    """Each on a line of its own, whatever its text holds."""
    written = Journal(tmp_path)
    written.note("sent", "Sends 3 B.", run="a-1", tensors=["w", "b"])
    written.note("refused", "line\nbreak and \udcff", run="ü")
    first, second = journal.read(tmp_path)
    assert first["event"] == "sent"
    assert (first["run"], first["tensors"]) == ("a-1", ["w", "b"])
    assert second["text"].startswith("line\nbreak")
    assert first["at"] <= second["at"]
    assert len((tmp_path / "journal.jsonl").read_bytes().splitlines()) == 2


def test_only_the_owner_can_read_it(tmp_path):
    """It says what the device does."""
    Journal(tmp_path).note("sent", "x")
    assert (tmp_path / "journal.jsonl").stat().st_mode & 0o777 == 0o600


def test_it_stays_within_its_size_and_keeps_the_newest(tmp_path):
    """Files are put aside in order, and the oldest go."""
    written = Journal(tmp_path, max_bytes=500, keep=2)
    for number in range(100):
        written.note("sent", f"{number}")
    kept = texts(tmp_path)
    assert kept == [f"{number}" for number in range(100)][-len(kept) :]
    assert 10 < len(kept) < 40
    assert len(journal.files(tmp_path)) <= 3
    assert all(path.stat().st_size < 700 for path in journal.files(tmp_path))


def test_refusals_without_end_do_not_push_out_what_was_sent(tmp_path):
    """After a burst one a minute is kept, and the next entry is preceded by how many were not."""
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


def test_an_entry_cut_by_a_power_failure_takes_no_other_with_it(tmp_path):
    """The next one begins on a line of its own."""
    Journal(tmp_path).note("sent", "before")
    with (tmp_path / "journal.jsonl").open("ab") as file:
        file.write(b'{"at": 1, "event": "se')
    Journal(tmp_path).note("sent", "after")
    assert texts(tmp_path) == ["before", "after"]


def test_a_full_disk_is_warned_of_once_and_then_over(tmp_path, monkeypatch, caplog):
    """Nobody who notes something hears of it."""
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
    """As on a disk with a little room left."""
    real = os.write
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", lambda handle, data: real(handle, data[:5]))
        Journal(tmp_path).note("sent", "lost")
    assert "cannot be written" in caplog.text
    Journal(tmp_path).note("sent", "kept")
    assert texts(tmp_path) == ["kept"]


def test_somebody_elses_file_in_its_place_is_not_followed(tmp_path, caplog):
    """A link out of the folder would let it overwrite what it must not."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder = tmp_path / "state"
    folder.mkdir()
    (folder / "journal.jsonl").symlink_to(victim)
    Journal(folder).note("sent", "x")
    assert victim.read_text() == "precious"


def test_following_shows_what_is_written_from_now_on(tmp_path):
    """Across files that are put aside, and where there is none yet."""
    written = Journal(tmp_path, max_bytes=300, keep=9)
    followed = journal.follow(tmp_path, every_s=0.0)
    assert next(followed) is None
    seen = []
    for number in range(20):
        written.note("sent", f"{number}")
        seen += [e["text"] for e in itertools.takewhile(lambda e: e is not None, followed)]
    assert seen == [f"{number}" for number in range(20)]


def test_following_passes_over_what_was_there_before(tmp_path):
    """That is shown by reading."""
    Journal(tmp_path).note("sent", "old")
    followed = journal.follow(tmp_path, every_s=0.0)
    assert next(followed) is None
    Journal(tmp_path).note("sent", "new")
    assert next(followed)["text"] == "new"


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"3", b"{}", b"\xff\xfe", json.dumps({"at": 1}).encode()]
)
def test_what_is_no_entry_is_passed_over(tmp_path, raw):
    """Somebody may have edited the file."""
    (tmp_path / "journal.jsonl").write_bytes(raw + b"\n")
    Journal(tmp_path).note("sent", "entry")
    assert texts(tmp_path) == ["entry"]


def test_nothing_in_an_entry_steers_the_terminal(tmp_path):
    """Whoever wrote it: an escape sequence could take back what is above it."""
    Journal(tmp_path).note("sent", "how w\x1b[1A\x1b[2K\u202e changed")
    (entry,) = journal.read(tmp_path)
    shown = line(entry, "09:00:00")
    assert "\\x1b[1A" in shown
    assert "\u202e" not in shown


def test_every_event_has_a_colour():
    """And no colour is for nothing."""
    assert COLOURS.keys() == EVENTS.keys()
