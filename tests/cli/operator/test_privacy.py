"""`fedloom privacy`: figures of the ledger as tables and CSV, and budgets with a question."""

import csv
import io
import json

import numpy as np
import pytest
import sqlalchemy as sa
from click.testing import CliRunner

from fedloom.cli.main import main
from fedloom.server.ledger.tables import runs
from support.door import Door

dp = pytest.importorskip("dp_accounting")

DELTA = 1e-6
NAMES = ("ash", "elm", "oak")


@pytest.fixture(scope="module")
def door(tmp_path_factory):
    """Three clients: two were in a private run, one of them and the third in a public one."""
    folder = tmp_path_factory.mktemp("door")
    with Door(folder / "state") as door:
        ledger = door.contexts.ledger
        for name in NAMES:
            ledger.add_token(name, "hash", name, 4e9)
            ledger.enrol(name, name, 4e9)
        ledger.set_labels("oak", {"site": "north"})
        table = {"clip": 1.0, "noise_multiplier": 4.0, "delta": DELTA}
        private = door.submit(folder, name="hearts", rounds=10, privacy=table)
        public = door.submit(folder, name="open")
        for run, cohort in ((private, ["ash", "oak"]), (public, ["elm", "oak"])):
            row = {
                "run": run, "number": 1, "kind": "train", "opened_at": 1.0, "deadline_at": 2e9,
                "model_in": "m",
            }  # fmt: skip
            ledger.open_round(row, cohort)
        ledger._change(sa.update(runs).where(runs.c.id == private).values(committed=6))
        door.private = private
        yield door


@pytest.fixture
def fedloom(door, monkeypatch):
    """Run a command against the door; returns its output."""
    monkeypatch.setenv("FEDLOOM_DIR", str(door.directory))

    def fedloom(*words, code=0):
        result = CliRunner().invoke(main, ["privacy", *words])
        assert result.exit_code == code, result.output
        return result.output

    return fedloom


def gaussian(rounds):
    return dp.get_epsilon_gaussian(4.0 / np.sqrt(rounds), DELTA)


@pytest.mark.long
def test_the_table_has_what_was_spent_and_reserved(fedloom):
    shown = fedloom("list")
    row = next(line for line in shown.splitlines() if line.startswith("all clients"))
    assert row.split() == [
        "all", "clients", "-", "1e-06", f"{gaussian(6):.4g}", f"{gaussian(10):.4g}", "-", "3", "0",
        "2", "ash", "zero-out",
    ]  # fmt: skip
    run = next(line for line in shown.splitlines() if line.startswith("hearts"))
    assert run.split()[1:] == ["running", "dp_fedavg", "6", "of", "10", f"{gaussian(6):.4g}",
                               "2", "-"]  # fmt: skip
    assert "without [privacy]" in shown


def test_clients_are_written_as_csv(fedloom, tmp_path):
    """With full precision; a client that was in no private run has spent nothing."""
    fedloom("clients", "--csv", str(tmp_path / "spent.csv"))
    rows = list(csv.DictReader(io.StringIO((tmp_path / "spent.csv").read_text())))
    found = [(row["client"], float(row["spent"]), row["runs"], row["public"]) for row in rows]
    assert found == [
        ("ash", gaussian(6), "1", "0"), ("elm", 0.0, "0", "1"), ("oak", gaussian(6), "1", "1"),
    ]  # fmt: skip
    assert all(float(row["reserved"]) == gaussian(10) for row in rows)
    assert "oak" in fedloom("clients", "--label", "site=north")
    assert "ash" not in fedloom("clients", "--label", "site=north")


def test_a_client_has_its_runs_and_another_delta(fedloom, door):
    shown = fedloom("client", "oak", "--delta", "1e-5")
    wanted = dp.get_epsilon_gaussian(4.0 / np.sqrt(6), 1e-5)
    assert f"oak has spent epsilon {wanted:.4g} at delta 1e-05" in shown
    assert "runs without [privacy], which have no bound: 1." in shown
    assert door.private in shown
    assert "There is no client" in fedloom("client", "nobody", code=2)


def test_a_budget_says_what_it_does_before_it_is_set(fedloom, door):
    """A preview changes nothing; a repeat says so; removing keeps what was spent."""
    words = ("set-budget", "3", "--delta", "1e-6", "--label", "site=north")
    said = fedloom(*words, "--preview")
    assert "Each of 1 client may spend epsilon 3 at delta 1e-06 over all runs" in said
    assert f"the largest is {gaussian(6):.4g}, with active runs {gaussian(10):.4g}" in said
    assert "Active runs no longer draw clients for which that is too much" in said
    assert "1 client of them took part in runs without [privacy]" in said
    assert door.contexts.ledger.privacy_budgets() == []
    assert "Without a terminal this needs --yes" in fedloom(*words, code=2)
    fedloom(*words, "--yes")
    assert "nothing changes" in fedloom(*words, "--yes")
    found = json.loads(fedloom("list", "--json"))
    [_, north] = found["populations"]
    assert (north["label"], north["over"], north["left"]) == ("site=north", 1, 0)
    assert {run["run"].split("-")[0]: run["barred"] for run in found["runs"]} == {
        "hearts": 1, "open": 1,
    }  # fmt: skip
    assert "no privacy budget any more" in fedloom("remove-budget", "--label", "site=north", "-y")
    assert "nothing changes" in fedloom("remove-budget", "--label", "site=north", "-y")
    found = json.loads(fedloom("list", "--json"))
    assert found["populations"][0]["spent"] == gaussian(6)
    assert all(run["barred"] == 0 for run in found["runs"])
    actions = [e["action"] for e in door.ask("GET", "/audit?action=privacy-budget")[1]["entries"]]
    assert actions == ["privacy-budget.remove", "privacy-budget.set"]


def test_a_delta_or_a_label_that_is_none_is_refused(fedloom):
    fedloom("set-budget", "3", "--delta", "1", "--yes", code=2)
    said = fedloom("set-budget", "3", "--delta", "1e-6", "--label", "=north", "--yes", code=2)
    assert "name or name=value" in said
