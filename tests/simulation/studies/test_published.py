"""Published tables: the plain loops agree with the simulations, and the tables say what was run."""

import ast
import importlib
import json
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from fedloom.cli.main import main
from fedloom.client.torch import batches
from fedloom.protocol.errors import UsageError
from fedloom.simulation import models, simulate, sources
from fedloom.simulation.kernels.fused import Fused
from fedloom.simulation.output.history import INTERRUPTED, Result
from fedloom.simulation.studies import (
    fedbuff2022,
    fedopt2021,
    fedprox2020,
    published,
    runner,
    scaffold2020,
    study,
    table,
)
from fedloom.simulation.studies.command import PAPERS
from fedloom.simulation.studies.mcmahan2017 import cells, comparison, reference, search
from fedloom.simulation.studies.plain import fedbuff2022 as plain_fedbuff
from fedloom.simulation.studies.plain import fedopt2021 as plain_fedopt
from fedloom.simulation.studies.plain import fedprox2020 as plain_fedprox
from fedloom.simulation.studies.plain import mcmahan2017 as plain_mcmahan
from fedloom.simulation.studies.plain import scaffold2020 as plain_scaffold
from support.marks import sampled

PLAIN = Path(plain_fedprox.__file__).parent
PAGE = Path(__file__).parents[3] / "docs" / "papers.md"
WHOLE = 1_000_000
"""A batch that holds all examples, so that their order does not matter."""


def declared(name, **settings):
    """A paper's study."""
    return importlib.import_module(f"fedloom.simulation.studies.{name}").study(**settings)


def settings_of(name, row, **changes):
    """A row's settings with every client in each round, all examples in a step."""
    cell = next(c for c in declared(name).cells if c.row == row)
    train = {k: v for k, v in cell.settings["train"].items() if k != "batch_size"}
    return {**cell.settings, "rounds": 3, "train": train, **changes}


def final(experiment):
    """The simulation's last model, as the plain loops have it."""
    return published.as_plain(simulate(experiment, show=False).params)


def arguments(made):
    """What every plain loop takes first."""
    return published.clients_of(made), published.start_of(made), np.random.default_rng(0)


@pytest.mark.parametrize("path", sorted(PLAIN.glob("*.py")), ids=lambda path: path.stem)
def test_the_plain_loops_import_numpy_and_each_other(path):
    """An oracle that shared code with the simulator would repeat its faults."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        names = (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module]
            if isinstance(node, ast.ImportFrom) and not node.level
            else []
        )
        for name in names:
            top = name.partition(".")[0]
            assert top == "numpy" or top in sys.stdlib_module_names, name


METHODS = (fedprox2020.FEDAVG, fedprox2020.PARTIAL, fedprox2020.PROX)


class Seen:
    """What the simulation's kernel trained: cohorts, epochs and the orders of batches."""

    def __init__(self, monkeypatch):
        self.epochs, self.seeds = {}, {}
        fit = Fused.fit

        def noting(kernel, job, task, local):
            self.epochs.setdefault(task.round, {})[job.client] = task.settings.epochs
            self.seeds[task.round, job.client] = job.seed
            return fit(kernel, job, task, local)

        monkeypatch.setattr(Fused, "fit", noting)


def batches_of(seeds, clients, size):
    """The simulation's batches for the plain loop."""

    def draw(number, turn):
        orders = batches.orders(len(clients[turn.client][1]), seeds[number, turn.client])
        for order in islice(orders, turn.epochs):
            yield from np.split(order.numpy(), range(size, len(order), size))

    return draw


def fedprox(share, method, *, rounds=3, **changes):
    """A cell's settings and its simulation, for a few rounds."""
    name = fedprox2020.row("(1, 1)", share, method)
    cell = next(c for c in declared("fedprox2020").cells if c.row == name)
    settings = {**cell.settings, "rounds": rounds, **changes}
    return settings, fedprox2020.experiment(settings, 0)


def plain_model(made, settings, rounds, draw, **changes):
    """The plain loop's last model."""
    clients, start, _ = arguments(made)
    given = fedprox2020.plain_of(settings) | changes
    *_, model = plain_fedprox.models(clients, start, rounds, draw, **given)
    return model


@pytest.mark.long
@pytest.mark.parametrize("share", sampled([0, 50, 90], 3, first=1))
def test_fedprox_agrees_with_the_plain_loop(share, monkeypatch):
    """From the same cohorts, stragglers and batches: FedAvg drops stragglers, FedProx keeps them.

    The stragglers of all methods are those of FedProx with μ = 0, as its kernel trained them. Each
    simulation differs from the plain loop with the other's semantics.
    """
    seen = Seen(monkeypatch)
    settings, made = fedprox(share, fedprox2020.PARTIAL if share else fedprox2020.FEDAVG)
    final(made)
    clients, drawn = published.clients_of(made), list(fedprox2020.rounds_of(made, settings))
    for number, cohort in enumerate(drawn, 1):
        assert {turn.client: turn.epochs for turn in cohort} == seen.epochs[number]
        assert [turn.straggles for turn in cohort].count(True) == share // 10
        assert len(cohort) == fedprox2020.COHORT
    draw = batches_of(seen.seeds, clients, 10)
    for method in METHODS if share else (fedprox2020.FEDAVG, fedprox2020.PROX):
        settings, made = fedprox(share, method)
        found = final(made)
        agrees = plain_model(made, settings, drawn, draw)
        np.testing.assert_allclose(found, agrees, rtol=2e-4, atol=5e-4)
        given = fedprox2020.plain_of(settings)
        wrong = [{"mu": 1.0 - given["mu"]}, *([{"drop": not given["drop"]}] if share else [])]
        for change in wrong:
            other = plain_model(made, settings, drawn, draw, **change)
            assert np.abs(other - found).max() > 0.05, change


@pytest.mark.long
@pytest.mark.parametrize("share", [50, 90])
def test_stragglers_are_the_same_for_all_methods(share, monkeypatch):
    """Ten rounds: FedAvg trains those in time, whole; FedProx all, stragglers 1 to E epochs."""
    seen = {}
    for method in METHODS:
        whole_batches = {"epochs": fedprox2020.EPOCHS, "learning_rate": 0.01}
        with monkeypatch.context() as patch:
            seen[method] = Seen(patch)
            final(fedprox(share, method, rounds=10, train=whole_batches)[1])
    whole, part, pulled = (seen[method] for method in METHODS)
    assert part.epochs == pulled.epochs
    assert part.seeds == pulled.seeds
    assert whole.seeds.items() <= part.seeds.items()
    lengths = []
    for number, cohort in part.epochs.items():
        in_time = whole.epochs[number]
        assert len(cohort) == fedprox2020.COHORT
        assert len(in_time) == fedprox2020.COHORT - share // 10
        assert set(in_time.values()) == {fedprox2020.EPOCHS}
        assert in_time.items() <= cohort.items()
        lengths += [epochs for client, epochs in cohort.items() if client not in in_time]
    assert len({tuple(sorted(cohort)) for cohort in part.epochs.values()}) == 10
    assert 1 <= min(lengths) < max(lengths) <= fedprox2020.EPOCHS
    assert 7 < np.mean(lengths) < 14  # 10.5 expected


def _with_batch(settings):
    return {**settings, "train": {**settings["train"], "batch_size": WHOLE}}


@pytest.mark.long
@pytest.mark.parametrize("method", ["SCAFFOLD", "FedAvg", "FedProx"])
def test_scaffold_agrees_with_the_plain_loop(method):
    """Three rounds of all clients, five passes each: control variates are used from the second."""
    row = scaffold2020.row(0, method, 5)
    settings = settings_of("scaffold2020", row, cohort={"goal": scaffold2020.CLIENTS})
    made = scaffold2020.experiment(settings, 0.3, 0)
    given = scaffold2020.plain_of(settings, 0.3, 3)
    *_, model = plain_scaffold.models(*arguments(made), **given)
    np.testing.assert_allclose(final(made), model, rtol=2e-4, atol=2e-5)
    if method != "FedAvg":
        plain = scaffold2020.plain_of(settings, 0.3, 3) | {"control": False, "mu": 0.0}
        *_, other = plain_scaffold.models(*arguments(made), **plain)
        assert np.abs(other - model).max() > 1e-3


@pytest.mark.parametrize("name", fedopt2021.NAMES)
def test_server_optimizers_agree_with_the_plain_loop(name):
    settings = settings_of("fedopt2021", name, cohort={"goal": fedopt2021.CLIENTS})
    made = fedopt2021.experiment(settings, 0.1, 0.05, 0)
    given = fedopt2021.plain_of(_with_batch(settings), 0.1, 0.05)
    *_, model = plain_fedopt.models(*arguments(made), **given)
    np.testing.assert_allclose(final(made), model, rtol=1e-3, atol=5e-5)


def test_buffers_agree_with_the_plain_loop():
    """Twenty buffers: order of arrival, times, staleness and its weights.

    All clients train at a time, so the one that ends is the only idle one.
    """
    settings = settings_of("fedbuff2022", fedbuff2022.row(fedbuff2022.BUFFERED, 13), rounds=20)
    settings["cohort"] = {**settings["cohort"], "concurrency": fedbuff2022.CLIENTS}
    made = fedbuff2022.experiment(settings, 0.3, 0)
    result = simulate(replace(made, stop={}), show=False)
    seconds = made.population.sizes * made.devices.example_s
    steps = plain_fedbuff.buffered(
        *arguments(made), seconds=seconds, concurrency=fedbuff2022.CLIENTS, goal=fedbuff2022.GOAL,
        epochs=1, batch=WHOLE, rate=0.3, max_staleness=fedbuff2022.MAX_STALENESS,
    )  # fmt: skip
    played = list(islice(steps, len(result.records)))
    times, found = zip(*played, strict=True)
    assert [record.virtual_s for record in result.records] == pytest.approx(times, rel=1e-3)
    np.testing.assert_allclose(published.as_plain(result.params), found[-1], rtol=1e-3, atol=5e-5)
    assert result.records[-1].staleness > 1


def test_synchronous_rounds_agree_with_the_plain_loop():
    row = fedbuff2022.row(fedbuff2022.SYNCHRONOUS, 13)
    settings = settings_of("fedbuff2022", row)
    settings["cohort"] = {"goal": 200, "over_selection": 1.5, "deadline_s": 1e7}
    made = fedbuff2022.experiment(settings, 0.3, 0)
    result = simulate(replace(made, stop={}), show=False)
    seconds = made.population.sizes * made.devices.example_s
    steps = plain_fedbuff.synchronous(
        *arguments(made), seconds=seconds, cohort=300, goal=200, epochs=1, batch=WHOLE, rate=0.3
    )
    played = list(islice(steps, len(result.records)))
    times, found = zip(*played, strict=True)
    assert [record.virtual_s for record in result.records] == pytest.approx(times, rel=1e-3)
    np.testing.assert_allclose(published.as_plain(result.params), found[-1], rtol=1e-3, atol=5e-5)


@pytest.mark.long
@pytest.mark.parametrize("batch", [10, None])
def test_the_2nn_agrees_with_the_plain_loop(batch):
    """A client's round from the same weights, in the same order of examples, is torch's."""
    rng = np.random.default_rng(0)
    x, y = rng.random((40, 784), np.float32), rng.integers(0, 10, 40)
    network = plain_mcmahan.initial(rng)
    assert sum(w.size + b.size for w, b in network) == 199_210
    model = models.build("2nn", input_shape=(784,), num_classes=10)
    tensors = [torch.tensor(value) for w, b in network for value in (w.T, b)]
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), tensors, strict=True):
            parameter.copy_(value)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for start in range(0, 40, batch or 40):
        chosen = slice(start, start + (batch or 40))
        network = plain_mcmahan.step(network, x[chosen], y[chosen], 0.3)
        optimizer.zero_grad()
        given = torch.tensor(x[chosen]), torch.tensor(y[chosen])
        torch.nn.functional.cross_entropy(model(given[0]), given[1]).backward()
        optimizer.step()
    found = [value for w, b in network for value in (w.T, b)]
    for parameter, value in zip(model.parameters(), found, strict=True):
        np.testing.assert_allclose(parameter.detach().numpy(), value, rtol=1e-3, atol=1e-6)


@pytest.mark.long
def test_the_2nns_rounds_average_clients_and_learn():
    """On separable digits; two clients of one shard each see all examples, or half the classes."""
    rng = np.random.default_rng(0)
    y = np.arange(200) % 10
    x = np.zeros((200, 784), np.float32)
    x[np.arange(200), y * 50] = 1
    shards = plain_mcmahan.shards(rng, y, 2, iid=False)
    assert sorted(np.concatenate(shards)) == list(range(200))
    assert [len(np.unique(y[shard])) for shard in shards] == [6, 6] or [
        len(np.unique(y[shard])) for shard in shards
    ] == [5, 5]
    curve = list(plain_mcmahan.accuracies(
        (x, y), (x, y), rng, rounds=30, clients=2, cohort=2, epochs=2, batch=10, rate=0.3, iid=True,
    ))  # fmt: skip
    assert curve[-1] == 1.0 > curve[0]


def test_mcmahans_reference_is_kept_and_shown(tmp_path):
    """Only the 2NN, only at the best rate, and no run twice."""
    setting = cells.QUICK[1]
    best = search.Attempt(
        k=-3, learning_rate=0.316, rounds=40.6, ended="reached", last_round=41, accuracy=0.97,
        wall_s=1.0, clients_per_s=1.0, engine="", digest="",
    )  # fmt: skip
    found = {setting.name: search.SearchResult(
        name=setting.name, target=0.97, cap=100, settings={}, environment={}, attempts=(best,),
    )}  # fmt: skip
    runs = {setting.name: {f"0.316 seed {s}": v for s, v in enumerate((37.0, 39.0, None))}
            | {"0.1 seed 0": 99.0}}  # fmt: skip
    (tmp_path / reference.FILE).write_text(json.dumps(runs))
    kept = reference.run([setting], found, tmp_path, data={"folder": "nowhere"})
    assert kept == runs
    row = comparison.compare(found, plain=kept)[0]
    assert row.cells()[comparison.COLUMNS.index("reference")] == "38.0 ± 1.4 (1 never)"
    (tmp_path / reference.FILE).write_text("[1]")
    with pytest.raises(UsageError, match="no runs of the plain loop"):
        reference.read(tmp_path)


@pytest.mark.parametrize("similarity", [0, 10, 100])
def test_similar_shards_hold_every_example_once(similarity):
    """Of equal size within one, and with as many classes as the similarity allows."""
    y = np.repeat(np.arange(10), 143)
    shards = scaffold2020.similar_shards(y, 100, similarity, 0)
    assert sorted(np.concatenate(shards)) == list(range(1430))
    sizes = [len(shard) for shard in shards]
    assert max(sizes) - min(sizes) <= 2
    classes = np.mean([len(np.unique(y[shard])) for shard in shards])
    low, high = {0: (1, 1.2), 10: (1.5, 2.6), 100: (7, 9)}[similarity]
    assert low <= classes <= high


@pytest.mark.long
def test_inputs_of_synthetic_alpha_beta_have_the_papers_variances():
    """Of 300 devices: the mean input varies by β + 1/60, inputs around it by j^-1.2."""
    loaded = sources.SOURCES["synthetic-alpha-beta"](seed=1, beta=2.0, devices=300, test=0.0)
    x, owners = loaded.train.x, loaded.owners
    centres = np.stack([x[owners == name].mean(axis=0) for name in np.unique(owners)])
    assert np.var(centres.mean(axis=1)) == pytest.approx(2 + 1 / 60, rel=0.25)
    around = np.concatenate([x[owners == name] - x[owners == name].mean(axis=0)
                             for name in np.unique(owners)[:50]])  # fmt: skip
    expected = np.arange(1, 61) ** -1.2
    np.testing.assert_allclose(around.var(axis=0), expected, rtol=0.1)
    assert min(np.unique(owners, return_counts=True)[1]) >= 50


def test_alpha_changes_no_label():
    """u_k adds the same number to all ten scores of an example, which the largest cannot notice."""
    make = sources.SOURCES["synthetic-alpha-beta"]
    one, other = (make(seed=3, alpha=alpha, beta=1.0, devices=20) for alpha in (0.0, 1.0))
    np.testing.assert_array_equal(one.train.x, other.train.x)
    assert (one.train.y == other.train.y).mean() > 0.9999


@pytest.mark.long
def test_iid_devices_have_one_model():
    """Labels of all devices are those of one linear model; otherwise they are not."""
    make = sources.SOURCES["synthetic-alpha-beta"]

    def error(loaded):
        from sklearn.linear_model import LogisticRegression

        x, y, owners = loaded.train.x, loaded.train.y, loaded.owners
        names, counts = np.unique(owners, return_counts=True)
        chosen = np.isin(owners, names[counts > 150][:2])
        first = owners[chosen] == names[counts > 150][0]
        fitted = LogisticRegression(C=100, max_iter=2000).fit(x[chosen][first], y[chosen][first])
        return 1 - fitted.score(x[chosen][~first], y[chosen][~first])

    assert error(make(seed=0, iid=True)) < 0.4 < error(make(seed=0))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"alpha": -1.0}, "alpha >= 0"),
        ({"beta": float("inf")}, "finite beta"),
        ({"iid": True, "alpha": 1.0}, "iid = true excludes"),
        ({"devices": 0}, "devices as a whole number"),
        ({"test": 1.0}, "0 <= test < 1"),
    ],
)
def test_settings_of_synthetic_alpha_beta_are_checked(settings, problem):
    with pytest.raises(UsageError, match=problem):
        sources.SOURCES["synthetic-alpha-beta"](seed=0, **settings)


def test_scaffolds_published_rounds_have_the_printed_speedups():
    """The paper prints both; rounds over SGD's at 0, 10 and 100 % similarity."""
    printed = {
        ("SCAFFOLD", 1): (4.1, 5.9, 6.9),
        ("SCAFFOLD", 5): (2.1, 18.2, 41.6),
        ("SCAFFOLD", 10): (1.1, 22.8, 59.4),
        ("SCAFFOLD", 20): (1.2, 33.2, 104),
        ("FedAvg", 1): (1.2, 4.9, 5.0),
        ("FedAvg", 5): (0.7, 10.7, 41.6),
        ("FedAvg", 10): (0.4, 14.6, 69.3),
    }
    sgd = scaffold2020.PAPER["SGD", 1]
    for key, speedups in printed.items():
        for base, rounds, shown in zip(sgd, scaffold2020.PAPER[key], speedups, strict=True):
            assert base / rounds == pytest.approx(shown, abs=0.06)


def test_an_interrupted_simulation_is_not_a_run(monkeypatch):
    """Ctrl-C ends a simulation after a round; its last accuracy is no result of the cell."""
    cut = Result(records=(), params={}, digest="", folder=None, engine="", stopped=INTERRUPTED)
    monkeypatch.setattr(study, "simulate", lambda *_, **__: cut)
    cell = study.Cell(row="r", column="c", settings=scaffold2020.study().cells[0].settings)
    known = {k: v for k, v in cell.settings.items() if k not in ("similarity", "rates", "target")}
    known["train"] = {**known["train"], "learning_rate": 0.1}
    with pytest.raises(KeyboardInterrupt):
        study.at_the_end_or_zero(replace(cell, settings=known), 0)


@pytest.mark.long
@pytest.mark.parametrize("column", ["ours", "reference"])
def test_the_rounds_of_a_cell_are_those_of_the_committed_table(column):
    """A cell that takes a few rounds, and one that its cap ends."""
    made = published.with_reference(scaffold2020.study())
    row = scaffold2020.row(100, "FedAvg", 5)
    cell = next(c for c in made.cells if (c.row, c.column) == (row, column))
    results = study.StudyResults.read(study.COMMITTED / "scaffold2020")
    kept = next(r for r in results.runs if (r.row, r.column, r.seed) == (row, column, 1))
    assert scaffold2020.measure(cell, 1).values == kept.values
    hard = {**cell.settings, "rounds": 4, "target": 1.0, "rates": [0.1]}
    assert scaffold2020.measure(replace(cell, settings=hard), 1).values["rounds"] == 3


def made_up(cell, seed):
    """Ours is a tenth above the plain loop; FedProx below FedAvg."""
    loss = 1.0 + seed + (0.5 if "FedAvg" in cell.row else 0.0)
    values = {"loss": loss * (1.1 if cell.column == "ours" else 1.0), "accuracy": 0.5}
    return study.StudyRun(row=cell.row, column=cell.column, seed=seed, values=values)


def test_the_plain_loop_and_the_claims_are_in_the_table(tmp_path):
    made = replace(published.with_reference(declared("fedprox2020")), measure=made_up, seeds=(0, 1))
    results = runner.run(made, tmp_path)
    runner.report(made, results, tmp_path)
    page = (tmp_path / "README.md").read_text("utf-8")
    assert "| 2.200 ± 0.778 | 2.000 ± 0.707 | 1.10 |" in page
    assert "| the paper's claim | ours | reference |" in page
    claim = next(line for line in page.splitlines() if line.startswith("| Figure 2, (1, 1)"))
    assert claim.endswith(
        "| yes: 1.65 against 2.2, in 2 of 2 seeds | yes: 1.5 against 2, in 2 of 2 seeds |"
    )
    without = replace(made, cells=[cell for cell in made.cells if cell.column == "ours"])
    assert table.claim_titles(without, results) == ["the paper's claim", "ours"]


def test_a_claim_that_does_not_hold_says_no():
    runs = [
        study.StudyRun(row=row, column="ours", seed=0, values={"loss": value})
        for row, value in (("low", 2.0), ("high", 1.0))
    ]
    results = study.StudyResults("", runs)
    assert published.below(results, "ours", "loss", "low", "high") == (
        "2 against 1, in 0 of 1 seeds",
        False,
    )
    assert published.below(results, "reference", "loss", "low", "high") is None


@pytest.mark.parametrize("name", PAPERS)
def test_the_committed_results_are_of_the_whole_study(name):
    """Three seeds of every cell and of its plain loop, and the pages have the table."""
    made = published.with_reference(declared(name))
    results = study.StudyResults.read(study.COMMITTED / name)
    ran = {(run.row, run.column, run.seed, run.experiment) for run in results.runs}
    assert ran == {(c.row, c.column, seed, c.digest) for c in made.cells for seed in (0, 1, 2)}
    page = (study.COMMITTED / name / "README.md").read_text("utf-8")
    assert page == table.markdown(made, results)
    docs = PAGE.read_text("utf-8")
    for line in page.splitlines():
        if line.startswith("| "):
            assert line in docs
    shown = CliRunner().invoke(main, ["reproduce", name, "--committed", "--json"])
    assert shown.exit_code == 0, shown.output


@pytest.mark.parametrize("name", PAPERS)
def test_the_plain_loop_agrees_with_the_committed_results(name):
    """Means over three seeds of independent cohorts and batches are within the noise.

    The difference is at most five standard errors, or a fifth: each claim of a fault in the table
    would be a difference of the loop, not of luck. With the same cohorts it is a twentieth.
    """
    results = study.StudyResults.read(study.COMMITTED / name)
    metric = {"fedprox2020": "loss", "scaffold2020": "rounds", "fedbuff2022": "updates"}
    for row in {run.row for run in results.runs}:
        ours, plain = (
            results.entry(row, column, metric.get(name, "accuracy"))
            for column in ("ours", "reference")
        )
        error = np.hypot(ours.spread, plain.spread) / np.sqrt(3)
        least = 0.05 * plain.mean if name == "fedprox2020" else max(5 * error, 0.2 * plain.mean)
        assert abs(ours.mean - plain.mean) < least, row


def test_only_papers_have_a_reference():
    refused = CliRunner().invoke(main, ["reproduce", "privacy", "--reference"])
    assert refused.exit_code == 2
    assert "No such option" in refused.output
