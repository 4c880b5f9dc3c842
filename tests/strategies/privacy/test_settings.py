import builtins
import sys

import pytest

from fedloom.strategies.privacy import MissingAccountant, Privacy, accounting, claim_lines, plan
from fedloom.strategies.privacy.settings import noise_of_values

GOOD = {"clip": 1.0, "noise_multiplier": 10.0, "delta": 1e-5}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clip": 0}, "clip > 0"),
        ({"clip": float("inf")}, "finite clip"),
        ({"noise_multiplier": None}, "either privacy.noise_multiplier or privacy.target_epsilon"),
        ({"target_epsilon": 8}, "either privacy.noise_multiplier or privacy.target_epsilon"),
        ({"delta": 1}, "delta"),
        ({"population": 1000, "delta": 1e-3}, "below 1 / population"),
        ({"sampling": "poisson"}, "privacy.population"),
        ({"sampling": "shuffled"}, "sampling of none, poisson"),
        ({"mechanism": "dp_ftrl"}, "restart_every"),
        ({"restart_every": 8}, "restart_every"),
        ({"mechanism": "dp_bandmf"}, "separation with mechanism"),
        ({"separation": 8}, "separation with mechanism"),
        (
            {"mechanism": "dp_bandmf", "separation": 8, "bands": 9},
            "bands of at most separation = 8",
        ),
        ({"mechanism": "dp_bandmf", "separation": 2000, "bands": 1025}, "1024, got 1025"),
        ({"mechanism": "dp_bandmf", "separation": 8, "restart_every": 8}, "restart_every"),
        ({"mechanism": "dp_ftrl", "restart_every": 8, "bands": 2}, "bands of at most separation"),
        ({"participations": 3}, "participations with mechanism = dp_ftrl or dp_bandmf"),
        (
            {"mechanism": "dp_bandmf", "separation": 8, "sampling": "poisson", "population": 99},
            "takes nothing from sampling",
        ),
        ({"mechanism": "dp_bandmf", "separation": 8, "clip_quantile": 0.5}, "clip that adapts"),
        ({"mechanism": "local", "clip_quantile": 0.5}, "only dp_fedavg has a clip that adapts"),
        ({"mechanism": "local", "noise_multiplier": 0.01}, "noise_multiplier >= 0.1"),
        (
            {"mechanism": "local", "sampling": "poisson", "population": 99},
            "takes nothing from sampling",
        ),
    ],
)
def test_settings_that_claim_nothing_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        Privacy(**{**GOOD, **change})


def test_counting_the_clipped_costs_the_values_noise():
    """Andrew et al. 2021, Theorem 1: the two releases cost as much as one of the multiplier."""
    values = noise_of_values(1.0, 5.0)
    assert values**-2 + 10.0**-2 == pytest.approx(1.0)
    with pytest.raises(ValueError, match="clip_count_noise"):
        noise_of_values(1.0, 0.5)


@pytest.mark.long
def test_a_claim_states_its_conditions():
    """Protection, adversary, delta, sampling and clipping."""
    pytest.importorskip("dp_accounting")
    settings = Privacy(
        clip=0.5, target_epsilon=8.0, delta=1e-5, population=1000, sampling="poisson"
    )
    text = "\n".join(claim_lines(plan(settings, goal=20, rounds=50).claim()))
    for part in (
        "epsilon 8", "delta 1e-05", "one client", "anyone who sees the models", "server: trusted",
        "present when a round opens", "20/1000", "norm of 0.5", "budget of 8", "add-or-remove",
        "which clients are drawn stays secret",
    ):  # fmt: skip
        assert part in text, part
    banded = Privacy(
        mechanism="dp_bandmf", clip=0.5, noise_multiplier=4.0, delta=1e-5, separation=9, bands=7,
        participations=2,
    )  # fmt: skip
    text = "\n".join(claim_lines(plan(banded, goal=20, rounds=50).claim()))
    for part in (
        "at most once in any 9 rounds in a row, and in at most 2 rounds, which the server",
        "4 × clip in each round, correlated over 7 rounds", "6 × 4 bytes", "zero-out",
        "that may take part may",
        "on sums of the first rounds",
    ):  # fmt: skip
        assert part in text, part
    tree = Privacy(mechanism="dp_ftrl", clip=0.5, noise_multiplier=4.0, delta=1e-5, restart_every=4)
    text = "\n".join(claim_lines(plan(tree, goal=20, rounds=8).claim()))
    # Nodes of prefixes: 1, 1, 2, 1, 2, 2, 3, 2.
    assert f"first rounds {4 * (14 / 8) ** 0.5:.3g} × clip, at most {4 * 3**0.5:.3g}" in text
    local = Privacy(mechanism="local", clip=0.5, noise_multiplier=4.0, delta=1e-5)
    assert "including the server" in "\n".join(claim_lines(plan(local, goal=20, rounds=5).claim()))
    seeded = Privacy(**GOOD, noise="seed")
    assert "can remove the noise" in "\n".join(claim_lines(plan(seeded, goal=20, rounds=5).claim()))


def test_a_plan_stops_at_its_budget():
    """A budget below the cost of all rounds shortens the run; below one round it is refused."""
    pytest.importorskip("dp_accounting")
    short = plan(Privacy(**GOOD, budget=2.0), goal=20, rounds=1000)
    assert 0 < short.affordable < 1000
    assert short.epsilon(short.affordable) <= 2.0 < short.epsilon(short.affordable + 1)
    with pytest.raises(ValueError, match="at least one round"):
        plan(Privacy(**GOOD, budget=0.01), goal=20, rounds=1000)
    with pytest.raises(ValueError, match=r"at most privacy\.population"):
        plan(Privacy(**GOOD, population=10), goal=20, rounds=10)


def test_without_the_accountant_the_extra_is_named(monkeypatch):
    real = builtins.__import__

    def missing(name, *args, **kwargs):
        if name.startswith("dp_accounting"):
            raise ModuleNotFoundError(name)
        return real(name, *args, **kwargs)

    for name in [name for name in sys.modules if name.startswith("dp_accounting")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", missing)
    accounting._epsilon.cache_clear()
    with pytest.raises(MissingAccountant, match=r"fedloom\[privacy\]"):
        accounting.epsilon(accounting.Releases(noise_multiplier=3.14159), 3, 1e-5)
