"""The record of masked updates: what has left is not masked again, across restarts."""

from dataclasses import replace

import pytest

from fedloom.client.masking.record import MaskedRecord, MaskedUpdate
from fedloom.protocol.errors import IntegrityError, Refusal

UPDATE = MaskedUpdate(
    federation="tests", run="digits", round=3, attempt=1, model="a" * 64, kind="train"
)
SESSION = bytes(range(32))


def test_a_new_update_may_be_masked(tmp_path):
    """And its run is known only once it was trained for."""
    record = MaskedRecord(tmp_path)
    assert record.objection(UPDATE, 0) is None
    assert not record.knows("tests", "digits")
    record.trains(UPDATE)
    assert MaskedRecord(tmp_path).knows("tests", "digits")
    assert not MaskedRecord(tmp_path).knows("tests", "other")
    assert not MaskedRecord(tmp_path).knows("elsewhere", "digits")


def test_a_try_is_taken_once(tmp_path):
    """Also by another process; a later one is new."""
    assert MaskedRecord(tmp_path).begin(UPDATE) == 0
    record = MaskedRecord(tmp_path)
    assert "expected a later try, got 1" in record.objection(UPDATE, 0)
    assert record.objection(replace(UPDATE, attempt=2), 0) is None
    assert record.begin(replace(UPDATE, attempt=2)) == 1
    assert record.begin(UPDATE) == 2  # what a later check refuses does not lower the count
    assert "try 2" in record.objection(replace(UPDATE, attempt=2), 0)


@pytest.mark.parametrize("change", [{"attempt": 2}, {"model": "b" * 64}, {"kind": "evaluate"}])
def test_an_update_that_has_left_is_not_masked_again(tmp_path, change):
    """Nor is another one of its round, whatever the owner allows."""
    MaskedRecord(tmp_path).leaves(UPDATE, SESSION, 0)
    record = MaskedRecord(tmp_path)
    again = replace(UPDATE, attempt=3, **{k: v for k, v in change.items() if k != "attempt"})
    assert "it is not masked again" in record.objection(again, 9)
    with pytest.raises(Refusal, match="not masked again"):
        record.leaves(again, bytes(32), 9)


@pytest.mark.parametrize("repeats", [0, 1, 2])
def test_a_model_is_masked_as_often_as_the_owner_says(tmp_path, repeats):
    """Once, and `repeats` more, in other rounds."""
    record = MaskedRecord(tmp_path)
    for number in range(repeats + 1):
        record.leaves(replace(UPDATE, round=10 + number), bytes([number]) * 32, repeats)
    later = replace(UPDATE, round=99)
    assert f"allows {repeats} more" in record.objection(later, repeats)
    with pytest.raises(Refusal):
        record.leaves(later, SESSION, repeats)
    assert record.objection(replace(later, kind="evaluate"), repeats) is None
    assert record.objection(replace(later, model="b" * 64), repeats) is None


def test_a_closed_session_does_not_count(tmp_path):
    """Only the one that was closed."""
    record = MaskedRecord(tmp_path)
    record.leaves(UPDATE, SESSION, 0)
    record.closed(UPDATE, bytes(32))
    assert record.objection(replace(UPDATE, attempt=2), 0) is not None
    assert record.has_left("tests", "digits", SESSION)
    record.closed(UPDATE, SESSION)
    assert MaskedRecord(tmp_path).objection(replace(UPDATE, attempt=2), 0) is None
    assert not record.has_left("tests", "digits", SESSION)


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b'{"tries": {}}', b'{"tries":{"3":[]},"left":[]}']
)
def test_a_damaged_record_masks_nothing(tmp_path, damage):
    """What it forgot could be masked again."""
    record = MaskedRecord(tmp_path)
    record.begin(UPDATE)
    (path,) = (tmp_path / "masking").iterdir()
    path.write_bytes(damage)
    for call in (record.begin, lambda u: record.objection(u, 0)):
        with pytest.raises(IntegrityError, match="the record of masked updates"):
            call(UPDATE)


def test_the_record_is_private(tmp_path):
    """It says who took part in what."""
    MaskedRecord(tmp_path).begin(UPDATE)
    (path,) = (tmp_path / "masking").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
