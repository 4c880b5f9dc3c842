"""`fedloom reproduce robustness`: its cells are experiments, its table says what was found."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from PIL import Image

from fedloom.protocol.errors import UsageError
from fedloom.simulation import config
from fedloom.simulation.papers.command import reproduce
from fedloom.simulation.papers.robustness import cells, report
from fedloom.simulation.papers.robustness.run import Found
from fedloom.strategies import AGGREGATIONS


def test_every_rule_that_there_is_stands_in_the_table():
    """None is forgotten, and each cell is an experiment as it stands."""
    assert cells.RULES.keys() == AGGREGATIONS.keys()
    for cell in cells.cells(list(cells.RULES), list(cells.COLUMNS), seeds=1, rounds=2):
        described = config.load(cell.settings())
        assert len(described.attackers()) == (0 if cell.attack == "none" else cells.LIARS)
        assert 0 not in described.attackers()  # the trusted one


def test_unknown_rules_are_refused():
    """By what is known."""
    with pytest.raises(UsageError, match="rules of mean, median"):
        cells.cells(["medain"], ["none"], seeds=1, rounds=1)


def one(rule, attack, seed, accuracy):
    """A result that was made up."""
    return Found(
        rule=rule, attack=attack, seed=seed, rounds=3, accuracy=accuracy, stopped="", wall_s=1.0
    )


FOUND = [
    one("mean", "none", 0, 0.95),
    one("mean", "none", 1, 0.93),
    one("mean", "scale", 0, 0.1),
    one("median", "none", 0, 0.92),
    one("median", "scale", 0, 0.909),
]


def test_the_table_marks_what_lost_more_than_the_margin():
    """Against plain averaging without an attack, in the mean of its seeds."""
    titles, lines = report.rows(FOUND)
    assert titles == ["rule", "no attack", "scale × 100"]
    assert lines == [["mean", "0.940", "0.100 ✗"], ["median", "0.920", "0.909 ✗"]]
    assert "mean of 2 seeds, which differ by 0.020" in report.markdown(FOUND)


def test_it_is_written_and_read_again(tmp_path):
    """Table, JSON, CSV and a picture; what is read is what was written."""
    report.write(FOUND, tmp_path, "fedloom reproduce robustness")
    assert report.read(tmp_path) == FOUND
    assert (tmp_path / "results.csv").read_text().count("\n") == 1 + len(FOUND)
    assert "fedloom reproduce robustness" in (tmp_path / "README.md").read_text()
    with Image.open(tmp_path / "robustness.png") as picture:
        assert picture.width > 400
    assert report.read(tmp_path / "nowhere") == []


@pytest.mark.long
def test_the_command_runs_what_is_asked_for(tmp_path):
    """Two rules, one round: the same accuracies by two processes as here."""
    out = tmp_path / "out"
    words = ["robustness", "--only", "mean", "--only", "krum", "--rounds", "1", "--seeds", "1"]
    result = CliRunner().invoke(reproduce, [*words, "--quick", "--workers", "1", "--out", str(out)])
    assert result.exit_code == 0, result.output
    listed = json.loads((out / "results.json").read_text())["cells"]
    assert [(cell["rule"], cell["attack"]) for cell in listed] == [
        (rule, attack) for attack in cells.QUICK for rule in ("mean", "krum")
    ]
    assert all(0 < cell["accuracy"] <= 1 and cell["rounds"] == 1 for cell in listed)


def test_the_committed_results_hold_what_the_page_says():
    """Plain averaging fails where it is expected to; every robust rule keeps within the margin."""
    found = report.read(report.COMMITTED)
    table = report.scores(found)
    assert len(table) == len(cells.RULES) * len(cells.COLUMNS)
    top = report.reference(table)
    for (rule, attack), score in table.items():
        if rule == "mean" and cells.COLUMNS[attack].breaks:
            assert score.mean < top - 10 * cells.MARGIN, (rule, attack)
        if rule != "mean":
            assert score.mean >= top - cells.MARGIN, (rule, attack)
    shown = (report.COMMITTED / report.TABLE).read_text("utf-8")
    assert report.markdown(found) in shown
    page = Path(__file__).parents[3] / "docs" / "strategies" / "robust.md"
    assert report.markdown(found).partition("\n\n")[0] in page.read_text("utf-8")
