"""The paper's results are as printed, and a cell's experiment has the paper's settings."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from fedloom.cli.main import main
from fedloom.protocol.errors import UsageError
from fedloom.protocol.settings import merged
from fedloom.simulation import config, sources
from fedloom.simulation.api import simulate
from fedloom.simulation.studies.mcmahan2017 import cells, comparison, reference, search
from fedloom.simulation.studies.mcmahan2017.published import PUBLISHED, CellSetting
from fedloom.simulation.studies.mcmahan2017.run import COMMITTED
from fedloom.simulation.studies.mcmahan2017.search import Attempt, SearchResult


@pytest.fixture(scope="module")
def mnist(tmp_path_factory):
    """A folder in MNIST's layout with 6,000 and 100 blank digits, in the real proportions."""
    folder = tmp_path_factory.mktemp("mnist")
    for part, count in (("train", 6000), ("t10k", 100)):
        labels = np.arange(count) % 10
        for kind, array in (
            ("images-idx3", np.zeros((count, 28, 28), np.uint8)),
            ("labels-idx1", labels.astype(np.uint8)),
        ):
            header = struct.pack(">HBB", 0, 8, array.ndim)
            header += struct.pack(f">{array.ndim}I", *array.shape)
            (folder / f"{part}-{kind}-ubyte").write_bytes(header + array.tobytes())
    return folder


def _setting(**changes):
    return CellSetting(
        **{"model": "2nn", "split": "iid", "fraction": 0.1, "epochs": 1, "batch": 10, **changes}
    )


def _found(setting, rounds, k=-4):
    attempts = tuple(
        Attempt(
            k=k + away,
            learning_rate=0.215,
            rounds=None if rounds is None else rounds + abs(away),
            ended="capped" if rounds is None else "reached",
            last_round=100,
            accuracy=0.96,
            wall_s=1.0,
            clients_per_s=1.0,
            engine="",
            digest="",
        )
        for away in (-1, 0, 1)
    )
    return SearchResult(
        name=setting.name, target=0.97, cap=100, settings={}, environment={}, attempts=attempts
    )


def test_the_tables_have_as_many_figures_as_the_paper():
    """Forty in Table 1, of which five are dashes as its caption states; eighteen in Table 2."""
    counts = [[p.rounds for p in PUBLISHED if p.table == table] for table in (1, 2)]
    assert [len(some) for some in counts] == [40, 18]
    assert [some.count(None) for some in counts] == [5, 0]


@pytest.mark.parametrize(
    ("table", "setting", "printed"),
    [
        (1, _setting(batch=None), 1.0),
        (1, _setting(), 3.6),
        (1, _setting(split="noniid", fraction=0.1, batch=None), 2.4),
        (1, _setting(split="noniid", fraction=0.5), 7.4),
        (1, _setting(split="noniid", fraction=1.0), 8.6),
        (1, _setting(model="cnn", epochs=5, fraction=1.0), 3.1),
        (1, _setting(model="cnn", epochs=5, fraction=0.2, split="noniid", batch=None), 1.2),
        (2, _setting(model="cnn", epochs=5, batch=None), 3.5),
        (2, _setting(model="cnn", epochs=5, batch=None, split="noniid"), 0.5),
        (2, _setting(model="cnn", epochs=20), 34.8),
        (2, _setting(model="cnn", epochs=5, split="noniid"), 2.1),
    ],
)
def test_speedups_are_those_that_the_paper_prints(table, setting, printed):
    rows = comparison.compare({}, unrun=True)
    row = next(r for r in rows if (r.published.table, r.published.setting) == (table, setting))
    assert round(row.paper_speedup, 1) == printed


@pytest.mark.long
def test_every_setting_has_an_experiment(mnist):
    """None of more than forty is refused."""
    for setting in cells.ALL:
        cell = cells.cell(setting, data={"folder": str(mnist)})
        settings = merged(cell.settings, {"train.learning_rate": 0.1, "rounds": 1})
        data = {"source": "synthetic", "clients": 100, "shape": [28, 28], "examples": 1000}
        assert config.build({**settings, "data": data})
        assert cell.cap >= 30
    assert {*cells.QUICK} < {*cells.USUAL} < {*cells.ALL}


def test_an_experiment_has_the_settings_of_the_paper(mnist):
    """A hundred clients, m of them a round, B and E as given, plain averaging by examples."""
    cell = cells.cell(_setting(split="noniid"), data={"folder": str(mnist)}, seed=7)
    experiment = config.load(merged(cell.settings, {"train.learning_rate": 0.1}))
    spec = experiment.spec
    assert len(experiment.population) == 100
    assert set(experiment.population.sizes) == {60}
    assert (spec.seed, spec.weighting, spec.strategy["name"]) == (7, "examples", "fedavg")
    assert (spec.round_config().goal, spec.local_training().epochs) == (10, 1)
    assert spec.local_training().batch_size == 10
    assert sum(p.numel() for p in experiment.model().parameters()) == 199_210  # section 3


def test_all_of_a_clients_examples_are_one_batch_where_b_is_infinite(mnist):
    cell = cells.cell(_setting(batch=None, fraction=0.0), data={"folder": str(mnist)})
    spec = config.load(merged(cell.settings, {"train.learning_rate": 0.1})).spec
    assert spec.local_training().batch_size is None
    assert spec.round_config().goal == 1


@pytest.mark.parametrize("seed", range(5))
def test_the_pathological_split_gives_few_digits_to_each_client(mnist, seed):
    """Two shards of one digit each, because digits are multiples of shards here."""
    cell = cells.cell(_setting(split="noniid"), data={"folder": str(mnist)})
    population = sources.load(**{**cell.settings["data"], "seed": seed})
    digits = [len(np.unique(population.examples.y[shard])) for shard in population.shards]
    assert max(digits) <= 2
    assert len(np.unique(np.concatenate(population.shards))) == 6000


@pytest.mark.long
def test_one_batch_of_all_clients_is_gradient_descent_for_any_split():
    """So the cells C = 1, B = ∞ of the two splits are equal up to rounding."""
    losses = []
    for split in ("iid", "noniid"):
        cell = cells.cell(_setting(split=split, fraction=1.0, batch=None), data={})
        data = {"source": "synthetic", "examples": 1000, "clients": 100, "seed": 3}
        data["partition"] = cell.settings["data"]["partition"]
        settings = {**cell.settings, "data": data, "rounds": 5, "engine": {"workers": 1}}
        experiment = config.build(merged(settings, {"train.learning_rate": 0.1}))
        losses.append([r.test["loss"] for r in simulate(experiment, show=False).records])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert losses[0][-1] < losses[0][0]


def test_a_row_compares_counts_and_speedups():
    """Ours relative to our own baseline, the paper's to its own."""
    setting, base = _setting(), _setting(fraction=0.0)
    rows = comparison.compare({s.name: _found(s, n) for s, n in ((setting, 43.5), (base, 174.0))})
    row = next(row for row in rows if row.name == setting.name)
    assert (row.rounds, row.ratio, row.speedup) == (43.5, 0.5, 4.0)
    assert row.cells()[6:13] == ("87", "43.5", "–", "0.50", "3.6×", "4.0×", "0.215")
    assert row.remarks == ""


def test_a_missed_target_is_shown_as_such():
    setting = _setting(fraction=1.0, batch=None)
    (row,) = comparison.compare({setting.name: _found(setting, None)})
    assert row.cells()[6:8] == ("–", "–")
    assert "not reached in 100 rounds, 96.00% at best" in row.remarks


def test_cells_are_chosen_by_name():
    names = {setting.name for setting in cells.chosen(["2nn-iid-*-b10"], ())}
    assert names == {f"2nn-iid-m{m}-e1-b10" for m in (1, 10, 20, 50, 100)}
    with pytest.raises(UsageError, match="2nn-iid-m1-e1-b10"):
        cells.chosen(["3nn"], ())


def test_committed_counts_follow_from_their_curves():
    """Every result belongs to the cell that it names."""
    found = comparison.results(COMMITTED)
    assert found
    by_name = {setting.name: setting for setting in cells.ALL}
    for name, result in found.items():
        cell = cells.cell(by_name[name], data={})
        assert (result.name, result.settings) == (name, cell.settings)
        for attempt in result.attempts:
            counted = search.rounds_to(attempt.curve, result.target)
            assert (counted is None) == (attempt.rounds is None)
            assert counted is None or counted == pytest.approx(attempt.rounds, abs=1e-3)


def test_the_committed_table_matches_the_committed_results():
    found = comparison.results(COMMITTED)
    table = comparison.markdown(comparison.compare(found, plain=reference.read(COMMITTED)))
    for path in (COMMITTED / "README.md", Path(__file__).parents[4] / "docs" / "papers.md"):
        text = path.read_text(encoding="utf-8")
        assert table in text
        assert "README" not in path.name or comparison.rates(found) in text


@pytest.mark.long
def test_the_command_runs_a_cell_and_prints_paper_against_ours(mnist, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "fedloom.simulation.output.write_folder.write", lambda *_: None
    )  # no pictures
    arguments = ["reproduce", "mcmahan2017", "--folder", str(mnist), "--out", str(tmp_path)]
    only = ["--only", "2nn-iid-m1-e1-b10", "--cap", "1", "--grid", "1/3", "--workers", "1"]
    ran = CliRunner().invoke(main, [*arguments, *only, "--json"], catch_exceptions=False)
    (row,) = json.loads(ran.stdout)
    assert (row["paper_rounds"], row["rounds"], row["name"]) == (316, None, "2nn-iid-m1-e1-b10")
    assert "| 316 | –" in (tmp_path / "README.md").read_text(encoding="utf-8")
    shown = CliRunner().invoke(main, [*arguments, "--show"], catch_exceptions=False)
    assert "not reached in 1 rounds" in shown.stdout


def test_choices_that_exclude_each_other_are_refused():
    ran = CliRunner().invoke(main, ["reproduce", "mcmahan2017", "--quick", "--all"])
    assert ran.exit_code == 2
    assert "at most one" in ran.output
