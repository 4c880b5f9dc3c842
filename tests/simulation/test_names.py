"""Names as people write them, and the nearest known one at every level of a file."""

import pytest
import torch

from fedloom.protocol.errors import UsageError
from fedloom.protocol.settings import merged
from fedloom.server.planning.spec import parse
from fedloom.simulation import config, simulate
from fedloom.simulation.sweep import settings as sweeps

SETTINGS = {
    "rounds": 1,
    "data": {"source": "digits", "clients": 10},
    "model": {"name": "mlp", "hidden": [8]},
    "cohort": {"goal": 5},
    "train": {"epochs": 1, "batch_size": 16, "learning_rate": 0.1},
}
RUN = {name: SETTINGS[name] for name in ("cohort", "train")}


def loaded(change):
    return config.load(merged(SETTINGS, change))


@pytest.mark.parametrize("name", ["Adam", "AdamW", "SGD", "RMSprop", "ASGD", "Adagrad", "NAdam"])
def test_an_optimizer_has_torchs_name(name):
    """In torch.optim's spelling, and in lower and upper case."""
    for written in (name, name.lower(), name.upper()):
        made = loaded({"optimizer": {"name": written}}).optimizer
        assert type(made([torch.nn.Parameter(torch.zeros(1))], lr=0.1)) is getattr(
            torch.optim, name
        )


@pytest.mark.parametrize(
    ("change", "path", "name"),
    [
        ({"strategy": {"name": "FedAvg"}}, "strategy", "fedavg"),
        ({"strategy": {"name": "FedAdam"}}, "strategy", "fedadam"),
        ({"strategy": {"name": "q-FedAvg", "q": 1.0}}, "strategy", "qfedavg"),
        ({"rule": {"name": "FedProx", "mu": 0.1}}, "rule", "fedprox"),
        ({"aggregation": {"name": "Geometric Median"}}, "aggregation", "geometric_median"),
        ({"selection": {"name": "PowerOfChoice", "choices": 8}}, "selection", "power_of_choice"),
        ({"personal": {"name": "Ditto"}}, "personal", "ditto"),
    ],
)
def test_a_run_has_the_registrys_names(change, path, name):
    """Also where a name decides a default: the server stores one spelling."""
    written = parse({**RUN, **change})
    known = parse({**RUN, path: {**change[path], "name": name}})
    assert written == known
    assert getattr(written, path)["name"] == name


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"data.source": "Digits"}, {}),
        ({"data.partition": {"name": "Dirichlet"}}, {"data.partition": {"name": "dirichlet"}}),
        ({"data.partition": "Dirichlet"}, {"data.partition": {"name": "dirichlet"}}),
        ({"model.name": "MLP"}, {}),
        ({"model.loss": "CrossEntropy"}, {}),
        ({"engine.kernel": "Channels_Last"}, {"engine.kernel": "channels-last"}),
        ({"engine.device": "CPU"}, {"engine.device": "cpu"}),
        ({"attack": {"name": "sign-flip", "fraction": 0.2}},
         {"attack": {"name": "sign_flip", "fraction": 0.2}}),
    ],
)  # fmt: skip
def test_an_experiment_reads_names_in_any_spelling(change, same):
    found, meant = loaded(change), loaded(same)
    assert (found.engine, found.loss, found.attack) == (meant.engine, meant.loss, meant.attack)
    shards = zip(found.population.shards, meant.population.shards, strict=True)
    assert all(a.tolist() == b.tolist() for a, b in shards)


def test_a_strategy_without_a_name_is_fedavg():
    settings = {"server_learning_rate": 0.5}
    assert parse({**RUN, "strategy": settings}).strategy == {"name": "fedavg", **settings}
    assert parse({**RUN, "strategy": {}}) == parse(RUN)
    with pytest.raises(UsageError, match=r"strategy\.nme.*Did you mean 'name'"):
        parse({**RUN, "strategy": {"nme": "fedadam"}})


@pytest.mark.parametrize(
    ("change", "meant"),
    [
        ({"trian": {}}, "train"),
        ({"epochs": 1}, "train.epochs"),
        ({"goal": 1}, "cohort.goal"),
        ({"train.lr": 0.1}, "learning_rate"),
        ({"train.lerning_rate": 0.1}, "learning_rate"),
        ({"cohort.mode": "bufered"}, "buffered"),
        ({"strategy": {"name": "fedadamm"}}, "fedadam"),
        ({"rule": {"name": "fedprx"}}, "fedprox"),
        ({"aggregation": {"name": "meen"}}, "mean"),
        ({"selection": {"name": "unform"}}, "uniform"),
        ({"compression": {"up": {"name": "int88"}}}, "int8"),
        ({"compression": {"upp": {}}}, "up"),
        ({"metrics": {"quantile": []}}, "quantiles"),
        ({"privacy": {"klip": 1.0}}, "clip"),
        ({"data.sorce": "digits"}, "source"),
        ({"data.source": "digit"}, "digits"),
        ({"data.client": 3}, "clients"),
        ({"data.partition": {"name": "diriclet"}}, "dirichlet"),
        ({"data.partition": {"nme": "iid"}}, "name"),
        ({"data.partition": {"name": "dirichlet", "alfa": 1.0}}, "alpha"),
        ({"model.name": "mpl"}, "mlp"),
        ({"model.hiden": [1]}, "hidden"),
        ({"model.loss": "mee"}, "mse"),
        ({"optimizer": {"name": "adm"}}, "adam"),
        ({"optimizer": {"name": "adam", "beta": 1}}, "betas"),
        ({"engine.kernel": "fuse"}, "fused"),
        ({"engine.kernl": "fused"}, "kernel"),
        ({"engine.backend": "rey"}, "ray"),
        ({"attack": {"name": "sing_flip"}}, "sign_flip"),
        ({"devices": {"upload_mbits": 1}}, "upload_mbit_s"),
        ({"test": {"evry": 1}}, "every"),
        ({"output": {"tensorbord": True}}, "tensorboard"),
        ({"client": {"cod": "a:b"}}, "code"),
        ({"strategy": {"name": "fedadam", "lr": 0.1}}, "server_learning_rate"),
        ({"aggregation": {"name": "average"}}, "mean"),
        ({"aggregation": {"name": "trim"}}, "trimmed_mean"),
        ({"selection": {"name": "random"}}, "uniform"),
        ({"personal": {"name": "dito"}}, "ditto"),
        ({"rule": {"name": "fedprox", "lambda": 1.0}}, "mu"),
        ({"cohort.size": 5}, "goal"),
        ({"cohort.mode": "async"}, "buffered"),
        ({"weighting": "equal"}, "uniform"),
        ({"data.source": "femnist"}, "leaf"),
        ({"data.partition": "non-iid"}, "dirichlet"),
        ({"data.partition": {"name": "continuous", "by": "Mean"}}, "mean"),
        ({"data.transform": ["RandomHorizontalFlip"]}, "flip"),
        ({"data.transform": [{"name": "normalise", "mean": 0, "std": 1}]}, "deviation"),
        ({"model.loss": "nll"}, "cross_entropy"),
        ({"test.metrics": {"f1": "F1-score"}}, "f1"),
        ({"devices": {"upload_mbit_s": 1, "download_mbit_s": 1, "compute_examples_per_s":
                      {"distribution": "lognorm", "median": 1, "sigma": 1}}}, "lognormal"),
        ({"stop": {"acc": 0.9}}, "accuracy"),
    ],
    ids=str,
)  # fmt: skip
def test_the_nearest_name_is_proposed(change, meant):
    with pytest.raises(UsageError, match=f"Did you mean '{meant}'"):
        loaded(change)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"strategy": {"name": "FedProx"}}, r"another table: rule = \{ name = .fedprox. \}"),
        ({"strategy": {"name": "Krum"}}, r"another table: aggregation = \{ name = .krum. \}"),
        ({"strategy": {"name": "FedBuff"}}, r"set cohort.mode = .buffered."),
        ({"strategy": "fedadam"}, r"Write strategy = \{ name = .fedadam. \}"),
        ({"optimizer": "adam"}, r"Write optimizer = \{ name = .adam. \}"),
        ({"compression": {"up": "int8"}}, r"Write up = \{ name = .int8. \}"),
        ({"strategy.schedule": "cosine"}, r"strategy.schedule as a table.*\{ name = .cosine. \}"),
        ({"model": {"name": "mlp"}}, "Missing setting model.hidden of mlp: set it to a list of"),
        ({"data.held_out": "0.2"}, "held_out as a number.*without quotes: 0.2"),
        ({"optimizer": {"name": "sgd", "momentum": "0.9"}}, "optimizer.momentum as a number"),
        ({"optimizer": {"name": "adam", "betas": 0.9}}, "optimizer.betas as a list"),
        ({"optimizer": {"name": "adam", "betas": [0.9]}}, "optimizer.betas as a list"),
    ],
    ids=str,
)
def test_a_setting_of_another_form_is_named_with_the_right_one(change, said):
    with pytest.raises(UsageError, match=said):
        loaded(change)


def test_an_optimizer_may_have_its_full_name():
    made = loaded({"optimizer": {"name": "torch.optim.AdamW", "betas": [0.8, 0.9]}}).optimizer
    assert type(made([torch.nn.Parameter(torch.zeros(1))], lr=0.1)) is torch.optim.AdamW


@pytest.mark.parametrize(
    ("goal", "said"),
    [({"Accuracy": 0.9}, "Did you mean 'accuracy'"), ({"f1": 0.5}, "Further ones .* test.metrics")],
)
def test_a_goal_that_is_not_measured_is_refused_before_the_first_round(goal, said):
    seen = []
    with pytest.raises(UsageError, match=said):
        simulate(loaded({"stop": goal}), show=False, on_client=seen.append)
    assert not seen


@pytest.mark.parametrize(
    ("change", "meant"),
    [
        ({"algoritm": "grid"}, "algorithm"),
        ({"algorithm": "gird"}, "grid"),
        ({"pruner": "meadian"}, "median"),
        ({"pruner": {"name": "asha", "factr": 2}}, "factor"),
        ({"objective": "maximise"}, "maximize"),
        ({"parameters": {"train.epochs": {"mn": 1, "max": 2}}}, "min"),
        ({"parametrs": {}}, "parameters"),
    ],
    ids=str,
)
def test_a_sweep_proposes_the_nearest_name(change, meant):
    settings = {"experiment": SETTINGS, "parameters": {"train.epochs": [1, 2]}, **change}
    with pytest.raises(UsageError, match=f"Did you mean '{meant}'"):
        sweeps.parse(settings)
