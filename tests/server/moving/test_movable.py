"""What a change of the store would leave behind is refused by name, before anything is copied."""

import pytest

from fedloom.protocol.errors import UsageError
from fedloom.server.ledger import Ledger
from fedloom.server.moving.open_rounds import check_movable


@pytest.fixture
def ledger(tmp_path):
    made = Ledger.in_directory(tmp_path)
    yield made
    made.close()


def add(ledger, run, state="running", **columns):
    row = {"id": run, "name": run, "spec": {}, "state": state, "model": "m", **columns}
    ledger.add_run(row, 9)


def open_round(ledger, run):
    row = {"run": run, "number": 1, "kind": "train", "opened_at": 0.0, "deadline_at": 1.0}
    ledger.open_round({**row, "model_in": "m"}, ["ward.one"])


def test_runs_that_keep_files_on_this_disk_stay_with_files(ledger):
    """Unless they have ended; from a store to files there is none."""
    add(ledger, "app", "paused", spec={"flower": {"server_app": "x"}})
    add(ledger, "child", upstream="north")
    add(ledger, "ended", "finished", upstream="north")
    with pytest.raises(UsageError) as raised:
        check_movable(ledger, to_store=True)
    assert "got app (of a Flower ServerApp), child (of a parent server): stop" in str(raised.value)
    check_movable(ledger, to_store=False)


@pytest.mark.parametrize("to_store", [True, False])
def test_an_open_masked_round_is_refused(ledger, to_store):
    add(ledger, "masked", spec={"masking": {"min_members": 3}})
    check_movable(ledger, to_store=to_store)
    open_round(ledger, "masked")
    with pytest.raises(UsageError, match="masked, got round 1 of masked: its members forget"):
        check_movable(ledger, to_store=to_store)


def test_open_rounds_move(ledger):
    add(ledger, "plain", spec={"masking": None, "flower": {}})
    open_round(ledger, "plain")
    check_movable(ledger, to_store=True)
