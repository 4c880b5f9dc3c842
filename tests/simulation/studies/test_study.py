"""Studies: runs are stored, and tables and pictures show them."""

import importlib
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedloom.cli.main import main
from fedloom.protocol.errors import UsageError
from fedloom.simulation.studies import heterogeneity, robustness, runner, study, table
from fedloom.simulation.studies.command import STUDIES

README = Path(__file__).parents[3] / "README.md"
DOCS = README.parent / "docs" / "strategies"
SETTINGS = {
    "rounds": 2,
    "data": {"source": "digits", "clients": 4},
    "model": {"name": "logistic"},
    "cohort": {"goal": 2},
    "train": {"epochs": 1, "batch_size": 50, "learning_rate": 0.1},
    "engine": {"workers": 1},
}


def small(**changes):
    """Two rows, one column, two rounds of logistic regression each."""
    cells = [
        study.Cell(row=name, column="digits", settings={**SETTINGS, "strategy": {"name": name}})
        for name in ("fedavg", "fedavgm")
    ]
    made = study.Study(
        name="small", title="A small one", about="strategy", cells=cells, seeds=(0, 1),
        remarks="What to make of it.",
    )  # fmt: skip
    return replace(made, **changes)


def test_runs_are_kept_and_not_run_again(tmp_path):
    """An interrupted study continues where it was, to the same results."""
    whole = runner.run(small(), tmp_path, command="x")
    assert [(run.row, run.seed) for run in whole.runs] == [
        ("fedavg", 0), ("fedavg", 1), ("fedavgm", 0), ("fedavgm", 1),
    ]  # fmt: skip
    study.StudyResults("x", whole.runs[:3]).write(tmp_path)
    asked = []

    def measure(cell, seed):
        asked.append((cell.row, seed))
        return study.at_the_end(cell, seed)

    again = runner.run(small(measure=measure), tmp_path, command="x")
    assert asked == [("fedavgm", 1)]
    assert again.runs[3] == whole.runs[3]
    assert [dict(run.values) for run in again.runs] == [dict(run.values) for run in whole.runs]
    assert study.StudyResults.read(tmp_path) == again


def made_up(cell, seed):
    """An invented run."""
    return study.StudyRun(row=cell.row, column=cell.column, seed=seed, values={"accuracy": 0.5})


def test_runs_of_other_settings_do_not_count(tmp_path):
    runner.run(small(measure=made_up), tmp_path)
    first = small().cells[0]
    longer = replace(first, settings={**first.settings, "rounds": 3})
    counts = []
    results = runner.run(
        small(measure=made_up, cells=[longer]), tmp_path, on_run=lambda *event: counts.append(event)
    )
    assert [(done, of) for done, of, _ in counts] == [(1, 2), (2, 2)]
    assert [(run.row, run.experiment) for run in results.runs] == [
        ("fedavgm", small().cells[1].digest), ("fedavgm", small().cells[1].digest),
        ("fedavg", longer.digest), ("fedavg", longer.digest),
    ]  # fmt: skip


def test_the_data_folder_does_not_change_an_experiment():
    cell = small().cells[0]
    data = {**SETTINGS["data"], "folder": "mnist", "download": True}
    assert replace(cell, settings={**cell.settings, "data": data}).digest == cell.digest


@pytest.mark.long
def test_runs_in_processes_give_the_same_results(tmp_path):
    one = small(cells=small().cells[:1], seeds=(0,))
    here = runner.run(one, tmp_path / "here")
    assert runner.run(one, tmp_path / "there", processes=1) == here


def test_another_file_in_the_folder_is_refused(tmp_path):
    (tmp_path / "results.json").write_text('{"cells": []}')
    with pytest.raises(UsageError, match="is not a study's results"):
        runner.run(small(measure=made_up), tmp_path)


def test_the_table_shows_mean_and_spread(tmp_path):
    runs = [
        study.StudyRun(row=row, column="digits", seed=seed, values={"accuracy": value, "loss": 1.0})
        for row, values in (("fedavg", (0.5, 0.7)), ("fedavgm", (0.8, 0.8)))
        for seed, value in enumerate(values)
    ]
    results = study.StudyResults("fedloom reproduce small", runs)
    page = table.markdown(small(), results)
    assert "| strategy | digits |\n| --- | ---: |\n" in page
    assert "| fedavg | 0.600 ± 0.141 |\n| fedavgm | 0.800 ± 0.000 |" in page
    assert "over 2 seeds" in page
    assert "What to make of it." in page
    lines = table.comma_separated(results).splitlines()
    assert lines[:2] == ["row,column,seed,accuracy,loss", "fedavg,digits,0,0.5,1.0"]
    assert len(lines) == 5
    runner.report(small(), results, tmp_path)
    assert (tmp_path / "small.png").read_bytes().startswith(b"\x89PNG")
    both = small(cells=[*small().cells, replace(small().cells[0], column="other")])
    other = replace(runs[0], column="other")
    with_gap = study.StudyResults("x", [*runs, other])
    assert table.cells(both, with_gap)[1] == ["fedavgm", "0.800 ± 0.000", "–"]


def test_a_run_without_a_test_is_an_error():
    cell = study.Cell(row="r", column="c", settings={**SETTINGS, "test": {"every": 0}})
    with pytest.raises(UsageError, match="r, c ended without a test"):
        study.at_the_end(cell, 0)


@pytest.mark.parametrize("name", STUDIES)
def test_the_committed_results_are_of_the_whole_study(name):
    """The table has no gaps, and the README matches the results."""
    result = CliRunner().invoke(main, ["reproduce", name, "--committed", "--json"])
    assert result.exit_code == 0, result.output
    assert all(value is not None for row in json.loads(result.output) for value in row.values())
    made = importlib.import_module(f"fedloom.simulation.studies.{name}").study()
    results = study.StudyResults.read(study.COMMITTED / name)
    page = (study.COMMITTED / name / "README.md").read_text("utf-8")
    assert page == table.markdown(made, results)
    assert "–" not in {text for row in table.cells(made, results) for text in row}


@pytest.mark.parametrize(
    ("name", "page"),
    [
        ("robustness", "robust.md"),
        ("heterogeneity", "studies.md"),
        ("privacy", "studies.md"),
        ("personalisation", "personalisation.md"),
        ("adapters", "studies.md"),
    ],
)
def test_pages_show_the_committed_tables(name, page):
    text = (DOCS / page).read_text("utf-8")
    for line in (study.COMMITTED / name / "README.md").read_text("utf-8").splitlines():
        if line.startswith("| "):
            assert line in text


def test_the_readme_has_the_committed_figures():
    """Plain averaging and the weakest robust rule under attack, and the bytes of two codecs."""
    text = README.read_text("utf-8")
    results = study.StudyResults.read(study.COMMITTED / "robustness")

    def accuracy(row, column):
        return results.entry(row, column, "accuracy").mean

    attacks = [name for name, attack in robustness.ATTACKS.items() if attack.breaks]
    least = min(accuracy(rule, a) for rule in robustness.RULES if rule != "mean" for a in attacks)
    assert (
        f"falls from {accuracy('mean', 'none'):.1%} to {accuracy('mean', 'sign_flip'):.0%}; every "
        f"robust rule stays at {least:.1%} or above"
    ).replace("%", " %") in text
    results = study.StudyResults.read(study.COMMITTED / "compression")
    whole, int8, top = (
        results.entry(row, "digits", "up").mean for row in ("none", "int8", "top-1%")
    )
    assert f"int8 sends {int8 / whole:.1%} of".replace("%", " %") in text
    assert f"error feedback {top / whole:.1%}".replace("%", " %") in text


def test_an_installed_package_has_no_committed_results(monkeypatch, tmp_path):
    monkeypatch.setattr(study, "COMMITTED", tmp_path)
    result = CliRunner().invoke(main, ["reproduce", "privacy", "--committed"])
    assert result.exit_code == 2
    assert "in the repository" in result.output


def test_heterogeneity_results_support_their_claim():
    """FedProx and FedAdam beat FedAvg under the hard condition, by two standard errors or more."""
    results = study.StudyResults.read(study.COMMITTED / "heterogeneity")
    hard = list(heterogeneity.CONDITIONS)[-1]
    plain, prox, adam = (
        results.entry(row, hard, "accuracy")
        for row in ("FedAvg", "FedProx (μ = 0.1)", "FedAdam (η = 0.03)")
    )
    assert [len(entry.values) for entry in (plain, prox, adam)] == [5, 5, 5]
    for better in (prox, adam):
        error = math.hypot(better.spread, plain.spread) / math.sqrt(5)
        assert better.mean - plain.mean > 2 * error


def test_privacy_results_show_its_cost():
    """At epsilon 4, Poisson sampling is within 0.03 of no privacy; less assumed costs more."""
    results = study.StudyResults.read(study.COMMITTED / "privacy")
    none, poisson, tree, any_, local, banded = (
        results.entry(row, "epsilon 4", "accuracy").mean
        for row in (
            "no privacy", "dp_fedavg, Poisson sampling", "dp_ftrl, trees of 4 rounds",
            "dp_fedavg, no sampling assumed", "local", "dp_bandmf, separation of 4 rounds",
        )
    )  # fmt: skip
    assert none >= poisson > none - 0.03
    assert poisson > tree > any_ > local
    assert banded > tree
    assert all(run.values.get("epsilon", 0) <= int(run.column.split()[1]) for run in results.runs)
