"""A simulation's result depends only on the experiment, not on workers or interruptions."""

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from functools import partial
from multiprocessing import active_children

import numpy as np
import psutil
import pytest

from fedloom.protocol.errors import UnavailableError, UsageError
from fedloom.simulation import config
from fedloom.simulation.api import simulate
from fedloom.simulation.clock.devices import Devices
from fedloom.simulation.output.history import INTERRUPTED
from fedloom.simulation.training.simulator import Simulation
from support.experiments import Nudge, experiment, population
from support.marks import sampled
from support.patience import PATIENCE_S

quietly = partial(simulate, show=False)


def run(described, checkpoint=None, *, resume=False, rounds=None):
    """Digest and records of a simulation, or of its next few rounds."""
    simulation = Simulation(described, checkpoint, resume=resume)
    try:
        records = []
        for record in simulation.rounds():
            records.append(record)
            if len(records) == rounds:
                break
        simulation.save()
        return simulation.digest(), records
    finally:
        simulation.close()


# ---- the same bits -------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("kernel", ["fused", "resident"])
def test_gives_the_same_bits_for_any_number_of_workers(kernel):
    """One process, two or three: no bit of the model or of a metric changes."""
    alone, records = run(experiment(kernel=kernel))
    for workers in (2, 3):
        digest, others = run(experiment(kernel=kernel, workers=workers))
        assert digest == alone
        assert [r.test for r in others] == [r.test for r in records]
        assert [r.training for r in others] == [r.training for r in records]
        assert sum(share.clients for share in others[0].shares) == 4


@pytest.mark.long
@pytest.mark.parametrize("name", ["scaffold", "feddyn", "fednova", "mimelite", "qfedavg"])
def test_rules_with_memory_give_the_same_bits_for_any_number_of_workers(name):
    """Memories and slots are passed between processes."""
    settings = {"scaffold": {"clients": 6}, "feddyn": {"clients": 6, "alpha": 0.1}}
    settings["qfedavg"] = {"q": 1.0}
    chosen = {"name": name, **settings.get(name, {})}
    runs = [
        run(experiment(strategy=chosen, weighting="uniform", workers=n, rounds=4)) for n in (1, 2)
    ]
    assert runs[0][0] == runs[1][0]
    assert runs[0][0] != run(experiment(weighting="uniform", rounds=4))[0]


def test_gives_the_same_bits_from_batches_in_any_number_of_workers():
    """Groups of the batched kernel follow from the cohort, not from the workers."""
    digests = {run(experiment(kernel="batched", workers=n, rounds=2))[0] for n in (1, 2)}
    assert len(digests) == 1


@pytest.mark.long
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"strategy": {"name": "fedadam", "server_learning_rate": 0.1}},
        {"rule": {"name": "fedprox", "mu": 0.1}},
        {"strategy": {"name": "scaffold", "clients": 6}, "weighting": "uniform"},
    ],
    ids=["fedavg", "fedadam", "fedprox", "scaffold"],
)
def test_a_resumed_simulation_ends_with_the_same_bits(tmp_path, settings):
    """From a checkpoint after each round."""
    whole, records = run(experiment(rounds=4, **settings))
    for stopped in (1, 3):
        path = tmp_path / f"{stopped}.safetensors"
        _, first = run(experiment(rounds=4, **settings), path, rounds=stopped)
        digest, rest = run(experiment(rounds=4, **settings), path, resume=True)
        assert digest == whole
        assert [r.test for r in first + rest] == [r.test for r in records]
        assert [r.round for r in first + rest] == [1, 2, 3, 4]


def test_a_simulation_can_be_extended_by_more_rounds(tmp_path):
    """The result is that of a simulation with this length from the start."""
    path = tmp_path / "checkpoint"
    run(experiment(rounds=2), path)
    assert run(experiment(rounds=5), path, resume=True)[0] == run(experiment(rounds=5))[0]


def test_a_resumed_simulation_continues_the_virtual_clock(tmp_path):
    table = {
        "compute_examples_per_s": {"distribution": "lognormal", "median": 20.0, "sigma": 1.0},
        "download_mbit_s": 1.0,
        "upload_mbit_s": 1.0,
        "availability": {"on_s": 5.0, "off_s": 5.0},
    }
    devices = Devices.build(table, 6, 0)
    cohort = {"goal": 2, "over_selection": 1.5, "deadline_s": 60.0}
    whole, records = run(experiment(rounds=4, devices=devices, cohort=cohort))
    path = tmp_path / "checkpoint"
    run(experiment(rounds=4, devices=devices, cohort=cohort), path, rounds=2)
    digest, rest = run(experiment(rounds=4, devices=devices, cohort=cohort), path, resume=True)
    assert digest == whole
    assert [r.virtual_s for r in rest] == [r.virtual_s for r in records[2:]]
    assert 0 < records[0].virtual_s < records[-1].virtual_s


def test_resuming_with_other_settings_is_refused(tmp_path):
    """Other data or another learning rate would be another experiment."""
    path = tmp_path / "checkpoint"
    run(experiment(), path, rounds=1)
    train = {"epochs": 1, "batch_size": 4, "learning_rate": 0.2}
    for other in (experiment(train=train), experiment(data=population(seed=1, sizes=(9,) * 6))):
        with pytest.raises(UsageError, match="begun with other settings"):
            Simulation(other, path, resume=True)


# ---- the rounds of the server --------------------------------------------------------------------


def test_averages_like_the_server():
    """Clients' own code, weighted by examples: the first round is the weighted mean by hand."""
    described = experiment(rounds=1, goal=6, client=Nudge)
    simulation = Simulation(described)
    before = {name: value.copy() for name, value in simulation.params.items()}
    (record,) = list(simulation.rounds())
    numbers = np.arange(6)
    mean = np.sum((1 + numbers) * numbers) / np.sum(1 + numbers) / 64
    for name, value in simulation.params.items():
        np.testing.assert_allclose(value, before[name] + mean, rtol=1e-6, atol=1e-6)
    assert record.examples == 21
    assert record.training["number"] == pytest.approx(64 * mean)


def test_a_client_with_an_invalid_update_is_replaced():
    """A simulation refuses the updates that a server refuses."""
    bad = ("client-001", "client-004")
    described = experiment(rounds=2, goal=4, client=partial(Nudge, bad=bad))
    simulation = Simulation(described)
    records = list(simulation.rounds())
    assert [record.accepted for record in records] == [4, 4]
    assert all(record.counts.get("refused", 0) >= 1 for record in records)
    assert "finite" in records[0].reason
    assert all(np.isfinite(value).all() for value in simulation.params.values())


def test_a_refused_update_leaves_no_trace_in_the_sum():
    bad = experiment(rounds=1, goal=6, client=partial(Nudge, bad=("client-003",)))
    simulation = Simulation(bad)
    (record,) = list(simulation.rounds())
    numbers = np.array([0, 1, 2, 4, 5])
    mean = np.sum((1 + numbers) * numbers) / np.sum(1 + numbers) / 64
    before = Simulation(bad).params
    for name, value in simulation.params.items():
        np.testing.assert_allclose(value, before[name] + mean, rtol=1e-6, atol=1e-6)
    assert (record.accepted, record.counts["refused"]) == (5, 1)


def test_stops_after_three_rounds_without_a_quorum():
    failing = {"compute_examples_per_s": 10.0, "download_mbit_s": 1.0, "upload_mbit_s": 1.0}
    devices = Devices.build({**failing, "failure": 1.0}, 6, 0)
    cohort = {"goal": 4, "quorum": 4}
    result = quietly(experiment(devices=devices, cohort=cohort))
    assert [record.state for record in result.records] == ["abandoned"] * 3
    assert "3 rounds in a row" in result.stopped


def test_clients_evaluate_before_training_and_at_the_end():
    """Held-out examples give the metrics of the received model, and of the last one."""
    result = quietly(experiment(data=population(held_out=3), rounds=3))
    assert [record.kind for record in result.records] == ["train"] * 3 + ["evaluate"]
    losses = [record.evaluation["loss"] for record in result.records]
    assert losses[-1] < losses[0]


def test_clients_evaluate_after_each_training():
    """With one batch a client, the metrics are those of a run that evaluates before."""
    settings = {
        "data": population(sizes=(6, 6), held_out=2),
        "cohort": {"goal": 2, "quorum": 2},
        "train": {"epochs": 1, "batch_size": 6, "learning_rate": 0.1},
    }
    before = quietly(experiment(rounds=3, **settings))
    after = quietly(experiment(rounds=3, evaluate="after", **settings))
    assert [record.kind for record in after.records] == ["train", "evaluate"] * 3
    measured = [record.evaluation for record in after.records if record.kind == "evaluate"]
    for found, expected in zip(measured, before.records[1:], strict=True):
        assert found == pytest.approx(expected.evaluation, rel=1e-5)  # rows in another order
        assert found["loss"] > 0
    assert not any(record.evaluation for record in after.records if record.kind == "train")


class Counting(Nudge):
    """Reports the numbers of its rounds."""

    def train(self, params, task):
        params, num_examples, _ = super().train(params, task)
        return params, num_examples, {"round": task.round, "training": task.training_round}

    def evaluate(self, params, task):
        return 2, {"round": task.round, "training": task.training_round}


def test_tasks_have_the_number_of_the_training_round():
    """Evaluation rounds between them do not count."""
    result = quietly(experiment(client=Counting, rounds=3, evaluate="after"))
    told = [record.training or record.evaluation for record in result.records]
    assert [(each["round"], each["training"]) for each in told] == [
        (1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (6, 3)
    ]  # fmt: skip


def test_stops_at_the_goal():
    """A [stop] on test metrics ends the run; a resumed run has nothing to do."""
    result = quietly(experiment(rounds=50, stop={"accuracy": 0.6}))
    assert 0 < len(result.records) < 50
    assert result.records[-1].test["accuracy"] >= 0.6
    assert all(record.test["accuracy"] < 0.6 for record in result.records[:-1])


def test_a_caller_can_end_a_simulation():
    """`on_round` returns True to end it after that round."""
    result = quietly(experiment(rounds=9), on_round=lambda record, _: record.round == 2)
    assert len(result.records) == 2
    assert result.stopped


# ---- faults and interruptions --------------------------------------------------------------------


def test_a_killed_worker_is_reported():
    """With its name, its signal and advice."""
    simulation = Simulation(experiment(workers=2, rounds=100))
    try:
        rounds = simulation.rounds()
        next(rounds)
        victim = next(p for p in active_children() if p.name.startswith("fedloom worker"))
        victim.kill()
        with pytest.raises(UnavailableError, match="SIGKILL"):
            list(rounds)
    finally:
        simulation.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_out_of_memory_errors_have_advice(workers):
    class Hungry(Nudge):
        def train(self, params, task):
            import torch

            torch.empty(1 << 60)

    with pytest.raises(UnavailableError, match=r"Lower engine\.workers"):
        quietly(experiment(client=Hungry, workers=workers))


def test_a_clients_error_is_passed_on():
    """From a worker's process, with its traceback as a note."""

    class Broken(Nudge):
        def train(self, params, task):
            raise ZeroDivisionError("by the client")

    with pytest.raises(
        UsageError, match=r"failed: .*, line \d+, .*: ZeroDivisionError: by the client"
    ):
        quietly(experiment(client=Broken, workers=1))
    with pytest.raises(UsageError, match="by the client") as error:
        quietly(experiment(client=Broken, workers=2))
    assert 'raise ZeroDivisionError("by the client")' in error.value.__notes__[0]


CONFIG = """
name = "kill"
rounds = 60
[data]
source = "synthetic"
clients = 12
[model]
name = "logistic"
[cohort]
goal = 6
[train]
epochs = 2
batch_size = 4
learning_rate = 0.1
[engine]
workers = 2
"""


def command(config, *words, **kwargs):
    return subprocess.Popen(
        [sys.executable, "-m", "fedloom.cli.main", "simulate", str(config), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **kwargs,
    )


def rounds_in(folder):
    path = folder / "metrics.jsonl"
    return [json.loads(line)["round"] for line in path.read_text().splitlines()]


def wait_for_rounds(folder, count, process):
    while not (folder / "metrics.jsonl").exists() or len(rounds_in(folder)) < count:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


@pytest.fixture(scope="module")
def never_stopped():
    """The digest of the same simulation without a stop."""
    return quietly(config.load(tomllib.loads(CONFIG))).digest


@pytest.mark.long
@pytest.mark.e2e
@pytest.mark.parametrize(
    ("number", "code"),
    sampled([(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -9)], 3, first=2),
)
def test_survives_a_stop_at_any_place(tmp_path, never_stopped, number, code):
    """Ctrl-C, SIGTERM or SIGKILL: no worker remains, and --resume gives the same bits."""
    path = tmp_path / "kill.toml"
    path.write_text(CONFIG)
    folder = tmp_path / "out"
    process = command(path, "--out", str(folder), "--quiet", start_new_session=True)
    wait_for_rounds(folder, 3, process)
    workers = psutil.Process(process.pid).children(recursive=True)
    assert len(workers) == 2
    process.send_signal(number)
    process.communicate()
    assert process.returncode == code
    psutil.wait_procs(workers, timeout=PATIENCE_S)
    assert not any(worker.is_running() for worker in workers)
    done = rounds_in(folder)
    assert len(done) < 60
    resumed = command(path, "--out", str(folder), "--resume", "--json")
    out, err = resumed.communicate()
    assert resumed.returncode == 0, err
    assert json.loads(out)["digest"] == never_stopped
    assert rounds_in(folder) == list(range(1, 61))
    assert (folder / "report.html").exists()


@pytest.mark.long
def test_an_interrupt_ends_a_simulation_between_rounds(tmp_path):
    """Ctrl-C in Python leaves a result, a checkpoint and an output folder."""

    def interrupt(record, _):
        if record.round == 2:
            os.kill(os.getpid(), signal.SIGINT)

    result = quietly(experiment(rounds=50), out=tmp_path / "out", on_round=interrupt)
    assert result.stopped == INTERRUPTED
    assert 2 <= len(result.records) < 50
    rest = quietly(experiment(rounds=50), out=tmp_path / "out", resume=True)
    assert rest.digest == quietly(experiment(rounds=50)).digest
    assert [record.round for record in rest.records] == list(range(1, 51))


@pytest.mark.long
@pytest.mark.parametrize("where", ["finish", "test", "note"])
def test_an_interrupted_round_is_repeated(tmp_path, monkeypatch, where):
    from fedloom.simulation.output.files import OutputFolder
    from fedloom.simulation.workers.local import LocalWorkers
    from fedloom.strategies.optimizers.fedavg import FedAvg

    owner, name = {
        "finish": (FedAvg, "finish"),
        "test": (LocalWorkers, "evaluate"),
        "note": (OutputFolder, "append"),
    }[where]
    real, calls = getattr(owner, name), []

    def interrupted(*args):
        calls.append(args)
        given = real(*args) if where != "note" or len(calls) != 2 else None
        if len(calls) == 2:
            raise KeyboardInterrupt
        return given

    monkeypatch.setattr(owner, name, interrupted)
    stopped = quietly(experiment(rounds=4), out=tmp_path / "out")
    assert stopped.stopped == INTERRUPTED
    monkeypatch.undo()
    rest = quietly(experiment(rounds=4), out=tmp_path / "out", resume=True)
    assert rest.digest == quietly(experiment(rounds=4)).digest
    assert rounds_in(tmp_path / "out") == [1, 2, 3, 4]


@pytest.mark.long
def test_results_are_written_to_a_folder(tmp_path):
    import hashlib

    result = quietly(experiment(), out=tmp_path / "out")
    for name in ("report.html", "metrics.csv", "metrics.jsonl", "plots/accuracy.png"):
        assert (tmp_path / "out" / name).stat().st_size > 0
    model = (tmp_path / "out" / "model.safetensors").read_bytes()
    assert hashlib.sha256(model).hexdigest() == result.digest
    with pytest.raises(UsageError, match="--resume"):
        quietly(experiment(), out=tmp_path / "out")
