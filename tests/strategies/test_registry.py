"""Names and settings become strategies; errors list the known names."""

import dataclasses
import doctest

import pytest

from fedloom.strategies import (
    CLIENT_RULES,
    STRATEGIES,
    FedAdam,
    FedProx,
    Plain,
    client_rule,
    registry,
    strategy,
)


def test_a_strategy_is_built_from_its_settings():
    """Settings are the dataclass's fields; those left out keep their defaults."""
    settings = {"server_learning_rate": 0.1, "beta_1": 0.5, "beta_2": 0.9, "tau": 1}
    assert strategy("fedadam", settings) == FedAdam(**settings)
    assert strategy("fedadam") == FedAdam()


OWN_RULE = {"feddyn", "fednova", "ifca", "mimelite", "qfedavg", "scaffold"}


@pytest.mark.parametrize("name", sorted(STRATEGIES.keys() - OWN_RULE))
def test_every_strategy_has_defaults_and_takes_any_rule(name):
    """All are frozen and need only the sum."""
    algorithm = strategy(name, rule=FedProx(mu=1))
    assert algorithm.rule == FedProx(mu=1)
    assert strategy(name).rule == Plain()
    assert algorithm.needs == "sum"
    assert algorithm.rule.groups == ("delta",)
    assert algorithm.init({}).step == 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        algorithm.server_learning_rate = 2.0


BAD_STRATEGIES = [
    ("fedadm", {}, ValueError, "Expected a strategy, got 'fedadm'. Did you mean 'fedadam'"),
    ("x", {}, ValueError, "Known: fedadagrad, fedadam, fedavg, fedavgm, feddyn"),
    ("fedadam", {"beta1": 0.9}, ValueError, "'beta1' of fedadam. Did you mean 'beta_1'"),
    ("fedavg", {"momentum": 0.9}, ValueError, "Known: schedule, server_learning_rate"),
    ("fedavg", {"rule": "plain"}, ValueError, "Unknown setting 'rule' of fedavg"),
    ("fedavg", {"server_learning_rate": 0}, ValueError, "server_learning_rate > 0, got 0"),
    ("fedavg", {"server_learning_rate": "1"}, TypeError, 'as a number, got "1"'),
    ("fedavg", {"server_learning_rate": True}, TypeError, "as a number, got true"),
    ("fedavg", {"server_learning_rate": float("inf")}, ValueError, "finite"),
    ("fedavgm", {"momentum": 1}, ValueError, "momentum >= 0 and < 1, got 1"),
    ("fedavgm", {"momentum": -0.1}, ValueError, "momentum >= 0 and < 1"),
    ("fedadam", {"beta_1": 1.0}, ValueError, "beta_1"),
    ("fedadam", {"beta_2": 1.0}, ValueError, "beta_2"),
    ("fedyogi", {"beta_2": -1}, ValueError, "beta_2"),
    ("fedadagrad", {"tau": 0}, ValueError, "tau > 0"),
    (
        "fedadagrad",
        {"beta_2": 0.5},
        ValueError,
        "Known: beta_1, schedule, server_learning_rate, tau",
    ),
]


@pytest.mark.parametrize(("name", "settings", "error", "message"), BAD_STRATEGIES)
def test_an_unknown_strategy_is_refused_with_the_known_names(name, settings, error, message):
    with pytest.raises(error, match=message):
        strategy(name, settings)


BAD_RULES = [
    ("fedpox", {}, ValueError, "Did you mean 'fedprox'"),
    ("fedprox", {}, ValueError, "Missing setting mu of fedprox: set it to a number"),
    ("fedprox", {"mu": -1}, ValueError, "mu >= 0"),
    ("fedprox", {"mu": None}, TypeError, "mu of fedprox as a number"),
    ("plain", {"mu": 1}, ValueError, "Known: none"),
]


@pytest.mark.parametrize(("name", "settings", "error", "message"), BAD_RULES)
def test_an_unknown_client_rule_is_refused_with_the_known_names(name, settings, error, message):
    with pytest.raises(error, match=message):
        client_rule(name, settings)


def test_rules_are_listed_under_their_own_names():
    assert {"plain", "fedprox"} <= set(CLIENT_RULES)
    for name, build in CLIENT_RULES.items():
        assert build.name == name


def test_examples_in_the_docstrings_run():
    results = doctest.testmod(registry)
    assert results.attempted >= 2
    assert results.failed == 0
