"""The populations of runs: in the transaction of the round, never removed, also of old ledgers."""

import json
import sqlite3
from pathlib import Path

import pytest

from fedloom.server.ledger import Filter, Ledger
from fedloom.server.ledger.directory import Seen

BEFORE = Path(__file__).with_name("ledger_before_versions.sql")


@pytest.fixture
def ledger(tmp_path):
    return Ledger.in_directory(tmp_path)


def add_run(ledger, name, **more):
    row = {"id": name, "name": name, "spec": {}, "state": "running", "model": "m", **more}
    ledger.add_run(row, 1)


def open_round(ledger, run, number, cohort, drawn_from=()):
    row = {
        "run": run, "number": number, "kind": "train", "opened_at": 1.0, "deadline_at": 2.0,
        "model_in": "m",
    }  # fmt: skip
    ledger.open_round(row, cohort, drawn_from)


def members(ledger):
    found = ledger.population_facts().member_of
    return {name: set(runs) for name, runs in found.items()}


def test_a_population_has_cohorts_recruits_and_candidates(ledger):
    """Each client once, in however many rounds."""
    add_run(ledger, "a")
    add_run(ledger, "b")
    open_round(ledger, "a", 1, ["oak"])
    open_round(ledger, "a", 2, ["oak", "elm"])
    ledger.recruit("a", 2, "ash")
    open_round(ledger, "b", 1, [], {"oak", "fir"})
    assert members(ledger) == {"oak": {"a", "b"}, "elm": {"a"}, "ash": {"a"}, "fir": {"b"}}
    assert ledger.population_facts(client="fir").member_of == {"fir": {"b"}}


def test_a_large_population_is_stored_in_pieces(ledger):
    """With and without clients that are in it already."""
    add_run(ledger, "a")
    names = {f"c{i}" for i in range(25_000)}
    open_round(ledger, "a", 1, [], {f"c{i}" for i in range(100)})
    open_round(ledger, "a", 2, [], names)
    assert members(ledger).keys() == names


def test_only_labels_of_operators_and_free_clients_count(ledger):
    """A device must not choose the budget that covers it."""
    for number, name in enumerate(("oak", "elm", "ash", "fir")):
        ledger.add_token(str(number), "hash", name, 4e9)
        ledger.enrol(str(number), str(number), 4e9)
    ledger.set_labels("oak", {"site": "north"})
    ledger.set_labels("elm", {"site": "south"})
    ledger.saw({"ash": Seen(at=1.0, version="1", labels={"site": "north"})})
    ledger.set_hold("elm", "drain", "")
    ledger.revoke("fir")
    facts = ledger.population_facts(["site", "site=north"])
    assert facts.labelled == {"site": {"oak", "elm"}, "site=north": {"oak"}}
    assert facts.drawable == {"oak", "ash"}
    assert ledger.num_only_own("site=north") == 1


def test_a_budget_is_set_replaced_and_removed(ledger):
    """One for each label."""
    ledger.set_privacy_budget("", 8.0, 1e-6, allow_public=False, who="ann")
    ledger.set_privacy_budget("site", 2.0, 1e-5, allow_public=True, who="bob")
    ledger.set_privacy_budget("", 4.0, 1e-6, allow_public=False, who="cyd")
    found = [(row.label, row.epsilon, row.set_by) for row in ledger.privacy_budgets()]
    assert found == [("", 4.0, "cyd"), ("site", 2.0, "bob")]
    assert ledger.remove_privacy_budget("site")
    assert not ledger.remove_privacy_budget("site")


def test_runs_from_before_are_included(tmp_path):
    """Their cohorts; with a secret draw everybody, since who was present was not stored."""
    database = sqlite3.connect(tmp_path / "ledger.sqlite")
    database.executescript(BEFORE.read_text())
    private = json.dumps({"cohort": {"goal": 2}, "privacy": {"sampling": "poisson"}})
    database.execute("UPDATE runs SET spec = ? WHERE id = 'other'", (private,))
    database.commit()
    database.close()
    ledger = Ledger.in_directory(tmp_path)
    everybody = set(ledger.names(Filter()))
    cohort = {row.client for row in ledger.cohort("digits", 1)}
    assert cohort
    found = members(ledger)
    assert {name for name, runs in found.items() if "digits" in runs} >= cohort
    assert {name for name, runs in found.items() if "other" in runs} >= everybody
