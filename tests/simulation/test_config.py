"""Experiments from files: invalid settings are refused at once, with a clear message."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedloom.cli.main import main
from fedloom.protocol.errors import UsageError
from fedloom.simulation import config
from fedloom.simulation.api import simulate
from fedloom.simulation.workers.setup import set_up_workers

ROOT = Path(__file__).parents[2]
DIGITS = ROOT / "simulations" / "examples" / "digits.toml"


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sites": True}, "no sites = true in a simulation"),
        ({"cohort.goal": 50}, "cohort.goal = 50 is larger than the population of 20"),
        ({"data.clients": 3000}, "as many as there are examples, got 3000"),
        ({"data.partition.alpha": 1e-4}, "each of 20 clients at least 1"),
        ({"data.clients": 1.5}, "clients as a whole number >= 1, got 1.5"),
        ({"data.partition": 3}, "a partition"),
        ({"data.source": "digit"}, "Did you mean 'digits'"),
        ({"data": {"source": "mnist", "folder": "/nowhere"}}, "Set folder"),
        ({"data": 5}, r"Expected a table \[data\], got 5"),
        (
            {"model.name": "resnet"},
            "FILE.py:NAME, got 'resnet'. Did you mean 'resnet18-gn'\\? Known: ",
        ),
        ({"model.name": 3}, "model.name as text, got 3"),
        ({"model": {"name": "mlp", "hidden": [-5]}}, "model.hidden as a list of sizes"),
        ({"model": {"name": "mlp", "hidden": 3}}, "model.hidden as a list of sizes"),
        ({"model.loss": "l7"}, "a loss's name, or FILE.py:NAME"),
        ({"optimizer.name": "adamm"}, "got 'adamm'. Did you mean 'adam"),
        ({"optimizer.lr": 0.1, "optimizer.name": "sgd"}, "train.learning_rate"),
        ({"optimizer.name": "sgd", "optimizer.moment": 1}, "Did you mean 'momentum'"),
        ({"client.code": 3}, "client.code as"),
        ({"client.code": "nowhere.py:make"}, "no file nowhere.py"),
        ({"engine.kernel": "slow"}, "engine.kernel, got 'slow'. Known: auto, "),
        ({"engine.workers": 0}, "engine.workers >= 1"),
        ({"engine.backend": "dask"}, "engine.backend, got 'dask'. Known: local, ray"),
        ({"engine.device": "tpu"}, "engine.device, got 'tpu'. Did you mean 'cpu'"),
        ({"engine.threads": 4}, "Unknown setting 'engine.threads'. Known: backend"),
        ({"evaluate": True}, "held-out examples on the clients"),
        ({"train.learning_rate": -1.0}, "learning_rate > 0"),
        ({"train.global_batch_size": 64}, "either batch_size or global_batch_size"),
        ({"trian.learning_rate": 1.0}, "'trian'. Did you mean 'train'"),
        ({"rounds": "ten"}, "rounds as a whole number, got"),
        ({"strategy.name": "fedavgg"}, "Did you mean 'fedavg'"),
        ({"test.every": -1}, "test.every >= 0, got -1"),
        ({"stop.accuracy": "high"}, "stop.accuracy as a number"),
        ({"stop.accuracy": 97}, "0 < stop.accuracy <= 1"),
        ({"output.wandb": True}, "'output.wandb'. Known: mlflow, tensorboard"),
        ({"output.tensorboard": "yes"}, "output.tensorboard as true or false"),
        ({"train.batch_size": 1e6}, r"as a whole number, got 1000000.0 \(a number\)\.$"),
        ({"test.every": 0, "stop.accuracy": 0.9}, "needs test examples and test.every >= 1"),
        ({"devices.compute_examples_per_s": 10.0}, "devices.download_mbit_s"),
        ({"devices": {}}, "devices.compute_examples_per_s"),
        ({"max_weight": 10.0}, "Raise max_weight"),
        ({"name.first": 1}, "to be a table, got a value"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_invalid_settings_are_refused(change, message):
    with pytest.raises(UsageError, match=message):
        config.load(DIGITS, change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"engine.kernel": "fused"}, "fused does not support Conv2d"),
        ({"engine.device": "cuda"}, "Expected a CUDA device"),
    ],
    ids=["kernel", "device"],
)
def test_an_engine_that_does_not_support_the_model_is_refused(change, message, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(UsageError, match=message):
        set_up_workers(config.load(DIGITS, change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model.name": "char-lstm"}, r"inputs float32 \[1, 8, 8\] and targets int64 .*: Runtime"),
        ({"model.loss": "binary_cross_entropy"}, "Choose another model.name or model.loss"),
        ({"model": {"name": "mlp", "hidden": [], "loss": "mse"}}, "UserWarning: Using a target"),
        (
            {"model.loss": "{own}:each"},
            r"one number, the mean over a batch; it returned .* shape \(2,\)",
        ),
        ({"model.name": "{own}:broken"}, r"own.py, line 5, `raise Key.*`: KeyError: 'weights'"),
    ],
    ids=["model", "loss", "broadcast", "many", "constructor"],
)
def test_a_model_or_a_loss_that_does_not_fit_the_data_is_refused(change, message, tmp_path):
    own = tmp_path / "own.py"
    own.write_text(
        "from torch.nn.functional import cross_entropy\n"
        "def each(output, target):\n"
        "    return cross_entropy(output, target, reduction='none')\n"
        "def broken():\n"
        "    raise KeyError('weights')\n"
    )
    named = {
        key: value.format(own=own) if isinstance(value, str) else value
        for key, value in change.items()
    }
    with pytest.raises(UsageError, match=message):
        set_up_workers(config.load(DIGITS, named))


@pytest.mark.long
def test_a_failed_training_names_its_client_and_line(tmp_path, monkeypatch):
    """The same with one process and two; FEDLOOM_TRACEBACK adds the traceback."""
    own = tmp_path / "own.py"
    own.write_text(
        "class Camera:\n"
        "    def __init__(self, name): self.name = name\n"
        "    def train(self, params, task):\n"
        "        raise RuntimeError('no camera at ' + self.name)\n"
    )
    arguments = ["simulate", str(DIGITS), "--set", f"client.code={own}:Camera", "--quiet"]
    for workers in "1", "2":
        place = ["--out", str(tmp_path / workers), "--workers", workers]
        ended = CliRunner().invoke(main, [*arguments, *place])
        assert ended.exit_code == 2
        assert "own.py, line 4, `raise RuntimeError(" in ended.output
        assert "`: RuntimeError: no camera at client-0" in ended.output
        assert "Traceback" not in ended.output
    monkeypatch.setenv("FEDLOOM_TRACEBACK", "1")
    ended = CliRunner().invoke(main, [*arguments, "--out", str(tmp_path / "3"), "--workers", "2"])
    assert "raise RuntimeError('no camera at ' + self.name)" in ended.output


def test_an_experiment_is_a_file(tmp_path):
    with pytest.raises(UsageError, match="in a file, got the folder"):
        config.load(tmp_path)


def test_over_selection_needs_devices():
    from fedloom.simulation.api import simulate

    with pytest.raises(UsageError, match="over_selection = 1 without devices"):
        simulate(config.load(DIGITS, {"cohort.over_selection": 1.5}), show=False)


def test_python_files_are_read(tmp_path):
    """A file may hold settings, an experiment, or a function that makes either."""
    values = config.read(DIGITS)
    (tmp_path / "mine.py").write_text(
        f"experiment = {values!r}\n"
        "def made():\n"
        "    from fedloom.simulation import config\n"
        "    return config.load(experiment)\n"
    )
    plain = config.load(f"{tmp_path}/mine.py", {"rounds": 3})
    assert (plain.spec.rounds, len(plain.population)) == (3, 20)
    assert len(config.load(f"{tmp_path}/mine.py:made").population) == 20
    with pytest.raises(UsageError, match="--set cannot change an Experiment"):
        config.load(f"{tmp_path}/mine.py:made", {"rounds": 3})


@pytest.mark.long
def test_a_users_own_optimizer_and_clients_are_accepted(tmp_path):
    """Momentum from a file, and a training loop of the user's."""
    from fedloom.simulation.api import simulate

    change = {"rounds": 1, "engine.workers": 1, "optimizer": {"name": "sgd", "momentum": 0.9}}
    with_momentum = simulate(config.load(DIGITS, change), show=False)
    plain = simulate(config.load(DIGITS, {**change, "optimizer": {}}), show=False)
    assert with_momentum.digest != plain.digest
    (tmp_path / "own.py").write_text(
        "from fedloom.client import Client\n"
        "class Own(Client):\n"
        "    def __init__(self, name): self.name = name\n"
        "    def train(self, params, task):\n"
        "        return {n: v + 1 for n, v in params.items()}, 1, {'mine': 7.0}\n"
    )
    own = config.load(DIGITS, {**change, "optimizer": {}, "client.code": f"{tmp_path}/own.py:Own"})
    assert simulate(own, show=False).records[0].training == {"mine": 7.0}


def test_folders_are_relative_to_the_file(tmp_path):
    (tmp_path / "mnist.toml").write_text('[data]\nsource = "mnist"\nfolder = "here"\n')
    assert config.read(tmp_path / "mnist.toml")["data"]["folder"] == str(tmp_path / "here")


@pytest.mark.parametrize("text", ["x = ", "\xff"])
def test_toml_errors_have_their_position(tmp_path, text):
    path = tmp_path / "bad.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError, match=r"bad.toml: Expected an experiment as"):
        config.load(path)


@pytest.mark.long
def test_the_command_prints_json_and_an_exit_code(tmp_path):
    """0 and a digest when finished, 1 and the reason when stopped, 2 for invalid settings."""
    runner = CliRunner()
    words = ["simulate", str(DIGITS), "--json", "--workers", "1", "--set", "rounds=1"]
    done = runner.invoke(main, [*words, "--out", str(tmp_path / "a")])
    assert done.exit_code == 0, done.output
    document = json.loads(done.output)
    assert (document["rounds"], len(document["digest"])) == (1, 64)
    assert (tmp_path / "a" / "report.html").exists()
    wild = ["--set", "train.learning_rate=1e30", "--out", str(tmp_path / "b")]
    stopped = runner.invoke(main, [*words, *wild])
    assert stopped.exit_code == 1
    assert "updates refused, such as client-0" in json.loads(stopped.output)["stopped"]
    wrong = runner.invoke(main, [*words, "--set", "stop.acuracy=1", "--out", str(tmp_path / "c")])
    assert wrong.exit_code == 2
    assert "Did you mean 'accuracy'" in wrong.output


@pytest.mark.long
def test_describe_trains_nothing(tmp_path):
    words = ["simulate", str(DIGITS), "--describe", "--json", "--out", str(tmp_path)]
    told = json.loads(CliRunner().invoke(main, words).output)
    assert told["clients"] == "20"
    assert told["kernel"].startswith("channels-last: convolutions are faster")
    assert [path.name for path in tmp_path.iterdir()] == ["partition.png"]


@pytest.mark.long
def test_describe_lists_metrics_goals_and_the_folder_of_failures():
    changes = ("test.metrics.F=f1", "stop={accuracy = 0.9, F = {at_least = 0.3}}")
    words = ["simulate", str(DIGITS), "--describe", "--json"]
    for change in (*changes, "engine.debug=failures"):
        words += ["--set", change]
    told = json.loads(CliRunner().invoke(main, words).output)
    assert told["metrics"] == "F (fedloom.simulation.metrics:f1)"
    assert told["stop"] == "accuracy >= 0.9 or F >= 0.3 on the test examples"
    assert told["debug"] == "inputs of clients that fail are stored in failures"
    wrong = CliRunner().invoke(main, [*words, "--set", "stop.auc=0.5"])
    assert wrong.exit_code == 2
    assert "'auc', which is not measured" in wrong.output


@pytest.mark.long
def test_value_targets_of_a_table_are_learnt(tmp_path):
    """A model by name has one output per example, and the loss does not broadcast it."""
    table = tmp_path / "line.csv"
    rows = [f"{n / 50:.2f},{2 * n / 50 - 1:.2f}" for n in range(100)]
    table.write_text("x,y\n" + "\n".join(rows))
    experiment = config.load(
        {
            "rounds": 30,
            "data": {"source": "csv", "file": str(table), "target": "y", "task": "values"}
            | {"clients": 4},
            "model": {"name": "logistic", "loss": "mse"},
            "cohort": {"goal": 4},
            "train": {"epochs": 2, "batch_size": 5, "learning_rate": 0.1},
            "engine": {"workers": 1},
        }
    )
    result = simulate(experiment, show=False)
    with pytest.raises(UsageError, match="The model or the loss fails on inputs"):
        set_up_workers(config.load(experiment.settings, {"model.loss": "cross_entropy"}))
    assert result.params["0.weight"].item() == pytest.approx(2.0, abs=0.01)
    assert result.records[-1].test["loss"] < 1e-4
