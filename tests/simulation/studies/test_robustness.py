"""The study of robust rules: its cells are experiments, its table marks lost accuracy."""

import json

import pytest
from click.testing import CliRunner

from fedloom.simulation import config
from fedloom.simulation.studies import robustness, table
from fedloom.simulation.studies.command import reproduce
from fedloom.simulation.studies.study import COMMITTED, StudyResults, StudyRun
from fedloom.strategies import AGGREGATIONS


@pytest.mark.long
def test_every_rule_is_in_the_table():
    assert robustness.RULES.keys() == AGGREGATIONS.keys()
    for cell in robustness.study(rounds=2).cells:
        experiment = config.load({**cell.settings, "seed": 0})
        attackers = experiment.attackers()
        assert len(attackers) == (0 if cell.column == "none" else robustness.ATTACKERS)
        assert 0 not in attackers  # the trusted one


def run(rule, attack, seed, accuracy):
    """An invented run."""
    return StudyRun(row=rule, column=attack, seed=seed, values={"accuracy": accuracy})


RESULTS = StudyResults(
    "fedloom reproduce robustness",
    [
        run("mean", "none", 0, 0.95),
        run("mean", "none", 1, 0.93),
        run("mean", "scale", 0, 0.1),
        run("median", "none", 0, 0.92),
        run("median", "scale", 0, 0.909),
    ],
)


def test_the_table_marks_losses_beyond_the_margin():
    """Against plain averaging without an attack, in the mean of its seeds."""
    study = robustness.study()
    assert table.titles(study, RESULTS) == ["rule", "no attack", "scale × 100"]
    assert table.cells(study, RESULTS) == [
        ["mean", "0.940", "0.100 ✗"],
        ["median", "0.920", "0.909 ✗"],
    ]
    assert "mean over the seeds. ✗: more" in table.markdown(study, RESULTS)


@pytest.mark.longest
@pytest.mark.long
def test_the_command_runs_the_requested_cells(tmp_path):
    """Two rules, one round, in another process; JSON lists the runs."""
    words = ["robustness", "--only", "mean", "--only", "krum", "--rounds", "1", "--seeds", "1"]
    words += ["--quick", "--workers", "1", "--out", str(tmp_path)]
    result = CliRunner().invoke(reproduce, [*words, "--json"])
    assert result.exit_code == 0, result.output
    listed = json.loads(result.stdout)
    assert [(run["rule"], run["attack"]) for run in listed] == [
        (rule, attack) for attack in robustness.QUICK for rule in ("mean", "krum")
    ]
    assert all(0 < run["accuracy"] <= 1 and run["rounds"] == 1 for run in listed)


def test_the_committed_results_support_the_remarks():
    """Plain averaging fails where it is expected to; every robust rule keeps within the margin."""
    results = StudyResults.read(COMMITTED / "robustness")
    floor = robustness.least(results)
    for attack, column in robustness.ATTACKS.items():
        for rule in robustness.RULES:
            mean = results.entry(rule, attack, "accuracy").mean
            if rule != "mean":
                assert mean >= floor, (rule, attack)
            elif column.breaks:
                assert mean < floor - 9 * robustness.MARGIN, (rule, attack)
