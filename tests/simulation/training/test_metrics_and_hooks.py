"""Metrics of users' functions and the hooks of a simulation, for any number of workers."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score, roc_auc_score

from fedloom.client.torch import modules
from fedloom.protocol.errors import UsageError
from fedloom.simulation.api import simulate
from fedloom.simulation.clock.devices import Devices
from fedloom.simulation.kernels.base import Scores
from fedloom.simulation.kernels.metrics import measured
from support.experiments import experiment, population


def macro_f1(outputs, targets):
    return f1_score(targets, outputs.argmax(1), average="macro")


def one_against_rest(outputs, targets):
    if len(targets.unique()) < outputs.shape[1]:
        return None
    return roc_auc_score(targets, outputs.softmax(1), multi_class="ovr")


METRICS = {"f1": macro_f1, "auc": one_against_rest}


def described(*, metrics=None, **settings):
    """A run whose clients evaluate, with more test examples than one worker takes at once."""
    data = population(sizes=(9, 30, 32, 21, 15, 17), test=2300, held_out=8)
    made = experiment(data=data, **settings)
    return replace(made, metrics=metrics or {})


def outputs_of(made, params, examples, shard=slice(None)):
    """The outputs and targets of a model, by plain PyTorch."""
    model = made.model()
    modules.load(model, params)
    with torch.no_grad():
        return model.eval()(torch.from_numpy(examples.x[shard])), torch.from_numpy(
            examples.y[shard]
        )


@pytest.mark.parametrize("kernel", ["fused", "resident", "batched"])
def test_metrics_are_those_of_scikit_learn(kernel):
    """On all test examples at once, and as the mean over clients weighted by their examples."""
    made = described(metrics=METRICS, kernel=kernel, rounds=2, goal=6)
    models = [modules.parameters(made.model())]
    result = simulate(made, show=False, on_round=lambda _, params: models.append(dict(params)))
    for record, before, after in zip(result.records, models, models[1:], strict=False):
        if record.kind == "train":
            outputs, targets = outputs_of(made, after, made.population.test)
            expected = {name: float(f(outputs, targets)) for name, f in METRICS.items()}
            assert {name: record.test[name] for name in METRICS} == pytest.approx(
                expected, abs=1e-6
            )
        held = made.population.held_out_shards
        scores = [outputs_of(made, before, made.population.examples, shard) for shard in held]
        expected = np.mean([macro_f1(*each) for each in scores])  # each holds eight examples
        assert record.evaluation["f1"] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("workers", [2, 3])
def test_workers_change_no_bit_of_metrics_or_hooks(workers):
    """Functions may be lambdas, as workers are forked; clients come in the same order."""
    seen = {}
    for number in (1, workers):
        clients, rounds = [], []
        made = described(
            metrics={
                "f1": lambda outputs, targets: macro_f1(outputs + 0, targets),
                "auc": one_against_rest,
            },
            workers=number,
            rounds=2,
        )
        result = simulate(
            made,
            show=False,
            on_client=lambda each, to=clients: to.append({**each.as_dict(), "seconds": 0}),
            on_round=lambda record, _, to=rounds: to.append((record.test, record.evaluation)),
        )
        seen[number] = result.digest, clients, rounds
    assert seen[1] == seen[workers]
    assert "f1" in seen[1][2][0][0]


@pytest.mark.long
def test_a_resumed_simulation_measures_the_same(tmp_path):
    """A run stopped by `on_round` continues to the same metrics, and hooks see each round once."""
    made = described(metrics=METRICS, rounds=3)
    whole = simulate(made, show=False)
    seen = []

    def first(record, _):
        seen.append(record.round)
        return record.round == 1

    stopped = simulate(made, out=tmp_path / "out", show=False, on_round=first)
    assert stopped.stopped == "stopped by the caller"
    rest = simulate(
        made,
        out=tmp_path / "out",
        resume=True,
        show=False,
        on_round=lambda r, _: seen.append(r.round),
    )
    assert seen == [record.round for record in whole.records]
    assert [(r.test, r.evaluation) for r in rest.records] == [
        (r.test, r.evaluation) for r in whole.records
    ]


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ({"m": lambda outputs, targets: "high"}, "'m' returned str on the held-out examples of"),
        ({"m": lambda outputs, targets: outputs}, r"returned Tensor of shape \(8, 4\)"),
        ({"m": lambda outputs, targets: float("nan")}, r"'m' returned nan .* None where"),
        ({"m": lambda outputs, targets: 1 // 0}, "'m' failed on .*ZeroDivisionError"),
        ({"m": lambda outputs, targets: {"a": None, "b": []}}, "'m/b' returned list"),
        ({"m": lambda outputs: 1.0}, r"'m': expected a function of \(outputs, targets\)"),
        ({"m/a": macro_f1, "m": lambda outputs, targets: {"a": 1.0}}, "have the name 'm/a'"),
        ({"m": 3}, "got int"),
        ({"loss": macro_f1}, "measures 'loss' itself"),
        ({"a\nb": macro_f1}, "printable"),
        ([macro_f1], "a mapping from names to functions"),
    ],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_metric_that_cannot_be_recorded_is_named(metrics, said, workers):
    """The message has the metric, what it returned and what to do."""
    with pytest.raises(UsageError, match=said):
        simulate(described(metrics=metrics, workers=workers), show=False)


def test_undefined_metrics_are_left_out():
    """A client without a value does not count in the mean; numbers by name have its prefix."""
    first = {"m": lambda outputs, targets: {"low": int(targets[0]), "none": None}}
    made = described(metrics={**first, "never": lambda *_: None}, rounds=1)
    (record, *_) = simulate(made, show=False).records
    assert set(record.test) == {"loss", "accuracy", "m/low"}


def test_a_metric_that_changes_its_arguments_changes_no_other():
    def spoils(outputs, targets):
        outputs.zero_()
        targets.zero_()
        return 0.0

    made = described(metrics={"spoils": spoils, "f1": macro_f1}, rounds=1)
    record = simulate(made, show=False).records[0]
    alone = simulate(replace(made, metrics={"f1": macro_f1}), show=False).records[0]
    assert (record.test["f1"], record.evaluation["f1"]) == (
        alone.test["f1"],
        alone.evaluation["f1"],
    )


def test_metrics_of_a_diverged_model_are_nan():
    """Functions are not called, as most raise for outputs that are NaN."""
    scores = Scores(0, np.full((8, 4), np.nan, np.float32), np.zeros(8, np.int64))
    found = measured(METRICS, scores, np.inf, "the test examples")
    assert np.isnan([found["f1"], found["auc"]]).all()


def test_on_client_sees_every_member_with_its_bytes():
    """Sums over clients are those of the round; a client that is refused says why."""
    clients, rounds = [], []
    speeds = {"compute_examples_per_s": 50.0, "download_mbit_s": 1.0, "upload_mbit_s": 1.0}
    made = described(devices=Devices.build(speeds, 6, 0), rounds=2)
    simulate(
        made, show=False, on_client=clients.append, on_round=lambda record, _: rounds.append(record)
    )
    for record in rounds:
        own = [each for each in clients if each.round == record.round]
        assert len(own) == record.cohort
        assert sum(each.bytes_down for each in own) == record.bytes_down
        assert sum(each.bytes_up for each in own) == record.bytes_up
        assert sum(each.num_examples for each in own) == record.examples
        assert sum(each.counted for each in own) == record.accepted
        assert max(e.accepted_s for e in own if e.counted) == pytest.approx(record.virtual_s)
    assert {each.evaluated for each in clients} == {8}


def test_on_client_is_shown_no_metrics_of_private_runs():
    """As on a server."""
    seen = []
    private = {
        "privacy": {"clip": 1.0, "noise_multiplier": 1.0, "delta": 1e-5, "population": 6},
        "weighting": "uniform",
        "evaluate": False,
    }
    simulate(described(rounds=1, **private), show=False, on_client=seen.append)
    assert seen
    assert not any(each.training or each.evaluation for each in seen)


@pytest.mark.parametrize(
    ("hook", "said"),
    [
        ({"on_round": lambda record: None}, r"on_round: expected a function of \(record, params\)"),
        ({"on_round": lambda record, params: 0.5}, "expected True to end"),
        ({"on_client": lambda: None}, r"on_client: expected a function of \(record\)"),
    ],
)
def test_a_wrong_hook_is_refused(hook, said):
    with pytest.raises(UsageError, match=said):
        simulate(described(), show=False, **hook)


def test_the_parameters_of_on_round_are_read_only():
    """A hook that wrote to them would change the next round."""

    def write(_, params):
        next(iter(params.values()))[:] = 0

    with pytest.raises(ValueError, match="read-only"):
        simulate(described(), show=False, on_round=write)


def test_a_metric_of_clients_ends_a_run_and_marks_the_best_model():
    """[best] takes a metric of one's own, with its mode."""
    best = {"metric": "m", "mode": "max", "patience": 2}
    made = described(metrics={"m": lambda *_: 0.5}, rounds=20, best=best)
    result = simulate(made, show=False)
    assert result.best_model["metric"] == "m"
    assert result.enough.startswith("m has not improved on 0.5")
    assert len(result.records) == 3
