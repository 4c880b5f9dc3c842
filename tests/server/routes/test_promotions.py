"""Promotions and rollbacks over the API."""

import pytest

from fedloom.protocol.errors import UsageError
from support.door import Door, write_model


@pytest.fixture
def door(tmp_path):
    """A server with a run, `first`, that has committed nothing yet."""
    with Door(tmp_path / "state") as door:
        door.first = door.submit(tmp_path)
        door.digest = door.contexts.ledger.run(door.first).model
        yield door


def test_a_promotion_has_its_run_and_round(door):
    """Clients get this model from now on."""
    ledger = door.contexts.ledger
    assert ledger.promoted() is None
    status, done = door.ask("POST", f"/models/{door.digest[:8]}/promote", {"note": "good"})
    assert (status, done["changed"]) == (200, True)
    promotion = done["promotion"]
    assert (promotion["run"], promotion["round"], promotion["note"]) == (door.first, 0, "good")
    assert ledger.promoted().digest == door.digest
    assert ledger.promoted(door.first) == ledger.promoted()
    assert ledger.promoted("another") is None


def test_promoting_twice_changes_nothing(door):
    """The first row and its note stay."""
    first = door.ask("POST", f"/models/{door.digest}/promote", {"note": "good"})[1]
    again = door.ask("POST", f"/models/{door.digest}/promote", {"note": "better"})[1]
    assert again["changed"] is False
    assert again["promotion"] == first["promotion"]
    assert "already promoted" in again["consequence"]


def test_promotions_are_listed(door, tmp_path):
    """Three promotions of two models, newest first, page by page; ids increase."""
    other = door.put_model(write_model(tmp_path / "other.safetensors", value=1.0))
    door.commit(door.first, 1, other)
    for digest in (door.digest, other, door.digest):
        done = door.ask("POST", f"/models/{digest}/promote", {})[1]
    assert f"instead of {other[:12]}" in done["consequence"]
    page = door.ask("GET", f"/promotions?run={door.first}&limit=2")[1]
    assert [p["digest"] for p in page["promotions"]] == [door.digest, other]
    rest = door.ask("GET", f"/promotions?limit=2&before={page['more']}")[1]
    assert [p["digest"] for p in rest["promotions"]] == [door.digest]
    assert rest["more"] is None
    ids = [p["id"] for p in page["promotions"] + rest["promotions"]]
    assert ids == sorted(set(ids), reverse=True)


def test_a_preview_promotes_nothing(door):
    done = door.ask("POST", f"/models/{door.digest}/promote?preview=true", {})[1]
    assert (done["promotion"], done["changed"]) == (None, False)
    assert "becomes the one that clients use" in done["consequence"]
    assert door.contexts.ledger.promoted() is None


@pytest.mark.long
def test_a_model_of_no_run_is_not_promoted(door, tmp_path):
    stray = door.put_model(write_model(tmp_path / "stray.safetensors", value=2.0))
    status, fault = door.ask("POST", f"/models/{stray}/promote", {})
    assert (status, fault["error"]["kind"]) == (409, "conflict")
    status, _ = door.ask("POST", f"/models/{door.digest}/promote", {"run": "nope"})
    assert status == 404
    with pytest.raises(UsageError, match="Expected a model"):
        door.contexts.ledger.promote(stray)


def test_a_rollback_is_previewed(door, tmp_path):
    """The preview changes nothing; the same request without it rolls back."""
    other = door.put_model(write_model(tmp_path / "other.safetensors", value=1.0))
    door.commit(door.first, 1, other)
    url = f"/runs/{door.first}/rollback"
    status, seen = door.ask("POST", url + "?preview=true", {"round": 0})
    assert (status, seen["changed"]) == (200, False)
    assert "Round 1 is undone" in seen["consequence"]
    assert door.contexts.ledger.run(door.first).model == other
    done = door.ask("POST", url, {"round": 0})[1]
    assert (done["changed"], done["consequence"]) == (True, seen["consequence"])
    assert (done["model"], done["rounds_committed"]) == (door.digest, 0)
    again = door.ask("POST", url, {"round": 0})[1]
    assert (again["changed"], "nothing changes" in again["consequence"]) == (False, True)


@pytest.mark.parametrize("number", [1, 7])
def test_rollback_to_an_unknown_or_undone_round_is_refused(door, tmp_path, number):
    """The message lists the possible ones."""
    other = door.put_model(write_model(tmp_path / "other.safetensors", value=1.0))
    door.commit(door.first, 1, other)
    door.ask("POST", f"/runs/{door.first}/rollback", {"round": 0})
    status, fault = door.ask("POST", f"/runs/{door.first}/rollback", {"round": number})
    assert (status, fault["error"]["kind"]) == (409, "conflict")
    assert "(the latest: 0)" in fault["error"]["message"]


def test_rollback_to_a_missing_model_is_refused(door, tmp_path):
    """Before the open round is dropped."""
    door.commit(door.first, 1, "f" * 64)
    door.commit(door.first, 2, "e" * 64)
    status, fault = door.ask("POST", f"/runs/{door.first}/rollback", {"round": 1})
    assert (status, fault["error"]["kind"]) == (500, "integrity")
    assert door.contexts.ledger.run(door.first).model == "e" * 64
