"""The ledger's note of a run's state keeps its format: older state directories resume."""

import json

import pytest

from fedloom.server.planning.state_note import DifferenceRef, FileRef, StateNote

WHOLE = {
    "step": 3,
    "arrays": "aa",
    "sent": ["bb", 10],
    "clip": 0.5,
    "told": {"model": ["cc", 20], "differences": [["dd", "ee", 5], ["ee", "ff", 6]]},
}


@pytest.mark.parametrize("lacking", [(), ("clip",), ("told",), ("clip", "told")], ids="-".join)
def test_a_note_survives_a_round_trip(lacking):
    """Unused keys are left out."""
    text = json.dumps({name: value for name, value in WHOLE.items() if name not in lacking})
    assert StateNote.read(text).text() == text


def test_a_note_names_its_files():
    """All of them, so that none is pruned; the base of a difference may be missing."""
    assert StateNote.read(json.dumps(WHOLE)).digests == {"aa", "bb", "cc", "ee", "ff"}
    first = DifferenceRef(base="dd", file=FileRef(digest="ee", size_bytes=5))
    assert StateNote.read(json.dumps(WHOLE)).differences[0] == first


@pytest.mark.parametrize("text", [None, "null", '{"step": 0, "arrays": "", "sent": null}'])
def test_a_state_without_files_names_none(text):
    """Before the first round there are none."""
    note = StateNote.read(text)
    assert (note.digests, note.step, note.sent, note.held) == (frozenset(), 0, None, None)
