"""Every kind of settings file refuses unknown names and wrong types, at every level."""

import re

import pytest

from fedloom.client import config as client
from fedloom.client.owner import policy
from fedloom.protocol.errors import UsageError
from fedloom.protocol.settings import toml, within
from fedloom.server import config as server
from fedloom.server.planning.spec import parse
from fedloom.simulation import config as experiment
from fedloom.simulation.sweep.reading import read as read_sweep

CLIENT = {"server": "localhost:7443", "state_dir": "state"}
OIDC = {"issuer": "https://sso.example", "client_id": "x", "viewer": ["a"]}
RUN = {
    "cohort": {"goal": 4},
    "train": {"epochs": 1, "batch_size": 8, "learning_rate": 0.1},
    "strategy": {"name": "fedadam"},
}
DIGITS = {
    **RUN,
    "data": {"source": "digits", "clients": 8, "partition": {"name": "dirichlet", "alpha": 0.5}},
    "model": {"name": "mlp", "hidden": [4]},
    "devices": {"compute_examples_per_s": 10.0, "download_mbit_s": 1.0, "upload_mbit_s": 1.0},
}
SWEEP = {"experiment": DIGITS, "parameters": {"rounds": [1, 2]}}


def _client(path):
    return client.load(path, {})


def _server(path):
    return server.load(path.parent)


def _run(path):
    values = toml.read(path, "a run's settings")
    with within(path):
        return parse(values)


KINDS = {
    "client.toml": (_client, CLIENT),
    "server.toml": (_server, {}),
    "policy.toml": (policy.load, {}),
    "run.toml": (_run, RUN),
    "experiment.toml": (experiment.load, DIGITS),
    "sweep.toml": (read_sweep, SWEEP),
}


def load(tmp_path, file, table, change):
    """Load a valid file of this kind with a change to one of its tables."""
    reader, values = KINDS[file]
    document = _changed(values, table.split(".") if table else [], change)
    path = tmp_path / file
    path.write_text(toml.dumps(document))
    return reader(path)


def _changed(values, path, change):
    if not path:
        return {**values, **change}
    first, *rest = path
    return {**values, first: _changed(values.get(first, {}), rest, change)}


@pytest.mark.parametrize("file", KINDS)
def test_a_valid_file_loads(tmp_path, file):
    """So the refusals below have no other cause than their change."""
    load(tmp_path, file, "", {})


@pytest.mark.parametrize(
    ("file", "table", "more", "wrong", "nearest"),
    [
        ("client.toml", "", {}, "sevrer", "server"),
        ("client.toml", "conditions", {}, "batery_above", "battery_above"),
        ("client.toml", "tracing", {}, "endpont", "endpoint"),
        ("server.toml", "", {}, "keep_model", "keep_models"),
        ("server.toml", "tracing", {}, "endpont", "endpoint"),
        ("server.toml", "oidc", OIDC, "client_secret", "client_secret_file"),
        ("policy.toml", "", {}, "leves", "leaves"),
        ("policy.toml", "runs", {}, "alow", "allow"),
        ("run.toml", "", {}, "round", "rounds"),
        ("run.toml", "cohort", {}, "gaol", "goal"),
        ("run.toml", "train", {}, "learning_rat", "learning_rate"),
        ("run.toml", "strategy", {}, "beta1", "beta_1"),
        ("run.toml", "strategy.schedule", {"name": "cosine", "rounds": 9}, "flor", "floor"),
        ("run.toml", "rule", {"name": "fedprox", "mu": 1.0}, "mue", "mu"),
        ("run.toml", "aggregation", {"name": "trimmed_mean"}, "fractoin", "fraction"),
        ("run.toml", "selection", {"name": "power_of_choice"}, "choice", "choices"),
        ("run.toml", "compression", {}, "upp", "up"),
        ("run.toml", "compression.up", {"name": "int8"}, "blok", "block"),
        ("run.toml", "compression.down", {"name": "int8"}, "blok", "block"),
        ("run.toml", "metrics", {}, "quantile", "quantiles"),
        ("run.toml", "personal", {}, "kep", "keep"),
        ("run.toml", "privacy", {"clip": 1.0}, "deltas", "delta"),
        ("experiment.toml", "", {}, "modle", "model"),
        ("experiment.toml", "train", {}, "epoch", "epochs"),
        ("experiment.toml", "data", {}, "tets", "test"),
        ("experiment.toml", "data.partition", {}, "min_sise", "min_size"),
        ("experiment.toml", "model", {}, "hiden", "hidden"),
        ("experiment.toml", "optimizer", {"name": "sgd"}, "momentun", "momentum"),
        ("experiment.toml", "engine", {}, "worker", "workers"),
        ("experiment.toml", "devices", {}, "jiter", "jitter"),
        ("experiment.toml", "devices.trace", {}, "capacty", "capacity"),
        ("experiment.toml", "devices.drop_out", {"distribution": "normal"}, "sdt", "std"),
        ("experiment.toml", "devices.availability", {"on_s": 1.0}, "of_s", "off_s"),
        ("experiment.toml", "attack", {"name": "scale", "fraction": 0.1}, "facter", "factor"),
        ("experiment.toml", "test", {}, "evry", "every"),
        ("experiment.toml", "output", {}, "tensorbord", "tensorboard"),
        ("sweep.toml", "", {}, "algoritm", "algorithm"),
        ("sweep.toml", "parameters.seed", {"min": 1}, "maxx", "max"),
        ("sweep.toml", "pruner", {"name": "median"}, "warmup", "warmup_rounds"),
    ],
)
def test_an_unknown_setting_is_refused_with_the_nearest_name(  # noqa: PLR0917 - a table of cases
    tmp_path, file, table, more, wrong, nearest
):
    """With the file and the whole key."""
    key = f"{table}.{wrong}" if table else wrong
    with pytest.raises(UsageError) as caught:
        load(tmp_path, file, table, {**more, wrong: 1})
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / file}: Unknown setting {key!r}"), message
    assert f"Did you mean {nearest!r}? Known: " in message


@pytest.mark.parametrize(
    ("file", "table", "more", "wrong", "value", "expected"),
    [
        ("client.toml", "", {}, "reconnect_s", "5", "a number"),
        ("client.toml", "budgets", {}, "nice", 1.5, "a whole number"),
        ("server.toml", "", {}, "federation", 5, "text"),
        ("server.toml", "", {}, "metrics_open", 1, "true or false"),
        ("server.toml", "", {}, "names", "a", "a list of texts"),
        ("server.toml", "tracing", {}, "endpoint", 5, "text"),
        ("server.toml", "oidc", OIDC, "admin", "fl", "a list of texts"),
        ("policy.toml", "leaves", {}, "metrics", "no", "true or false"),
        ("policy.toml", "privacy", {}, "otherwise", "pray", '"decline" or "add"'),
        ("run.toml", "", {}, "rounds", "ten", "a whole number"),
        ("run.toml", "", {}, "weighting", "size", '"examples" or "client" or "uniform"'),
        ("run.toml", "cohort", {}, "goal", "many", "a whole number"),
        ("run.toml", "cohort", {}, "mode", "slow", '"synchronous" or "buffered"'),
        ("run.toml", "train", {}, "epochs", 1.5, "a whole number"),
        ("run.toml", "strategy", {}, "beta_1", "x", "a number"),
        ("run.toml", "compression.up", {"name": "int8"}, "block", "x", "a whole number"),
        ("run.toml", "compression.up", {}, "name", 8, "text"),
        ("run.toml", "privacy", {"clip": 1.0, "delta": 1e-5}, "noise", "x", '"secure" or "seed"'),
        ("experiment.toml", "", {}, "seed", "x", "a whole number"),
        ("experiment.toml", "data", {}, "test", "some", "a number"),
        ("experiment.toml", "data.partition", {}, "alpha", "x", "a number"),
        ("experiment.toml", "engine", {}, "group", "x", "a whole number"),
        ("experiment.toml", "client", {}, "code", 3, "text"),
        ("experiment.toml", "test", {}, "every", 1.5, "a whole number"),
        ("experiment.toml", "stop", {}, "accuracy", "x", "a number"),
        ("experiment.toml", "output", {}, "mlflow", "x", "true or false"),
        ("experiment.toml", "attack", {"name": "scale"}, "fraction", "x", "a number"),
        ("sweep.toml", "", {}, "trials", "x", "a whole number"),
        ("sweep.toml", "", {}, "of", "x", '"last" or "best"'),
        ("sweep.toml", "pruner", {}, "factor", "x", "a whole number"),
        ("sweep.toml", "derived", {}, "seed", 3, "text"),
    ],
)
def test_a_wrong_type_names_file_key_expected_and_got(  # noqa: PLR0917 - a table of cases
    tmp_path, file, table, more, wrong, value, expected
):
    """In one form of message."""
    key = f"{table}.{wrong}" if table else wrong
    with pytest.raises(UsageError) as caught:
        load(tmp_path, file, table, {**more, wrong: value})
    message, got = str(caught.value), toml.text_of(value)
    form = f"{tmp_path / file}: Expected {key}( of [^,]+)? as {expected}, got {got} "
    assert re.match(form, message), message


@pytest.mark.parametrize(
    ("file", "table"),
    [
        ("client.toml", "budgets"),
        ("server.toml", "oidc"),
        ("policy.toml", "runs"),
        ("run.toml", "train"),
        ("run.toml", "compression.up"),
        ("experiment.toml", "model"),
        ("sweep.toml", "derived"),
    ],
)
def test_a_value_in_place_of_a_table_is_refused(tmp_path, file, table):
    """With the table's name."""
    *above, name = table.split(".")
    with pytest.raises(UsageError, match=rf"{file}: Expected a table \[{table}\], got 5 "):
        load(tmp_path, file, ".".join(above), {name: 5})


@pytest.mark.parametrize("file", KINDS)
def test_a_file_that_is_not_toml_is_refused_with_the_place(tmp_path, file):
    """For every kind the same."""
    path = tmp_path / file
    path.write_text("x = = 1")
    with pytest.raises(UsageError, match=rf"{file}: Expected .* as TOML, got: .*line 1"):
        KINDS[file][0](path)
