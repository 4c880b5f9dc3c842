"""Selection uses the observations of the ledger's committed rounds, also after a restart."""

import math
import sqlite3
import time

import numpy as np
import pytest

from fedloom.server.ledger import AcceptedUpdate, Ledger
from fedloom.server.rounds.observed_rounds import add_rounds
from fedloom.strategies.selection import History, PowerOfChoice, Stratified

NAMES = ["alice", "bob", "carol", "dave"]


@pytest.fixture
def ledger(tmp_path):
    """A ledger with a run."""
    ledger = Ledger.in_directory(tmp_path)
    run = {"id": "run", "name": "run", "spec": {}, "state": "running", "reason": "", "model": "m"}
    ledger.add_run(run, 100)
    yield ledger
    ledger.close()


def play(ledger, number, accepted, *, kind="train", commits=True, gone=()):
    """A round that asks all clients; the accepted ones report `{name: (examples, loss)}`."""
    row = {
        "run": "run", "number": number, "kind": kind, "opened_at": 0.0, "deadline_at": 60.0,
        "model_in": "m",
    }  # fmt: skip
    ledger.open_round(row, NAMES)
    for client in gone:
        ledger.set_phase("run", number, client, "failed")
    for client, (examples, loss) in accepted.items():
        values = {"loss": loss, "region": float(len(client))}
        update = AcceptedUpdate(
            run="run", round=number, client=client, identity="i", file="", size_bytes=0, weight=1.0,
            norm=1.0, training={"num_examples": examples, "values": values},
        )  # fmt: skip
        ledger.accept(update, 10)
    time.sleep(0.001)
    ledger.close_round("run", number)
    if commits:
        result = {
            "model_out": f"m{number}", "strategy_state": None, "training": {}, "evaluation": {},
            "counts": True,
        }  # fmt: skip
        ledger.commit_round("run", number, result, 1)
    else:
        ledger.abandon_round("run", number, "for the test", "quorum")


def known(history):
    found = history.of(NAMES)
    columns = ("num_examples", "loss", "label", "seconds", "rounds", "last_round")
    return {name: getattr(found, name).tolist() for name in columns} | {"n": found.latest_round}


def test_only_committed_training_rounds_are_observed(ledger):
    """Abandoned and evaluation rounds are left out."""
    play(ledger, 1, {"alice": (10, 2.0), "bob": (20, 1.5)})
    play(ledger, 2, {"carol": (5, 9.0)}, commits=False)
    play(ledger, 3, {"carol": (5, 9.0)}, kind="evaluate")
    play(ledger, 4, {"alice": (11, 1.0), "carol": (7, math.nan)})
    history = History()
    add_rounds(history, ledger.observations("run"), Stratified(label="region"))
    found = known(history)
    assert found["num_examples"] == [11, 20, 7, 0]
    assert found["rounds"] == [2, 1, 1, 0]
    assert found["last_round"] == [4, 1, 4, 0]
    assert found["loss"][:2] == [1.0, 1.5]
    assert np.isnan(found["loss"][2:]).all()
    assert found["label"][:3] == [5.0, 3.0, 5.0]
    assert found["n"] == 4


def test_a_restart_gives_the_same_history(ledger):
    """One by one as committed, or all at once: bit for bit the same."""
    policy, as_it_ran = PowerOfChoice(), History()
    for number in (1, 2, 3):
        play(ledger, number, {"alice": (10, 1 / number), "dave": (3, 0.1 * number)})
        add_rounds(as_it_ran, ledger.observations("run", number - 1), policy)
    restarted = History()
    add_rounds(restarted, ledger.observations("run"), policy)
    assert str(known(restarted)) == str(known(as_it_ran))  # as text: NaN != NaN


def test_durations_of_clients(ledger):
    """Until the update; until the end of the round without one; not for members that gave up."""
    play(ledger, 1, {"alice": (1, 1.0)}, gone=["carol"])
    history = History()
    add_rounds(history, ledger.observations("run"), PowerOfChoice())
    seconds = known(history)["seconds"]
    assert 0 <= seconds[0] < seconds[1] < 60
    assert math.isnan(seconds[2])


def test_a_migrated_ledger_has_unknown_observations(tmp_path):
    """Its rows are kept; values that were not measured are unknown."""
    ledger = Ledger.in_directory(tmp_path)
    ledger.add_run(
        {"id": "run", "name": "run", "spec": {}, "state": "running", "reason": "", "model": "m"}, 1
    )
    play(ledger, 1, {"alice": (1, 1.0)})
    ledger.close()
    with sqlite3.connect(tmp_path / "ledger.sqlite") as database:
        database.execute("DROP INDEX cohorts_by_client")
        database.execute("ALTER TABLE cohorts DROP COLUMN offered_at")
    ledger = Ledger.in_directory(tmp_path)
    history = History()
    add_rounds(history, ledger.observations("run"), PowerOfChoice())
    found = known(history)
    assert found["loss"][0] == 1.0
    assert np.isnan(found["seconds"]).all()
    play(ledger, 2, {"alice": (1, 1.0)})
    add_rounds(history, ledger.observations("run", 1), PowerOfChoice())
    assert known(history)["seconds"][0] >= 0
    ledger.close()
