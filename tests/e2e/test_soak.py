"""A soak in a minute: clients come and go while rounds are committed, and nothing is left over.

`make soak` is the long form, with thousands of clients. What both conclude from their samples is
tested here on samples that are known to be fair or unfair.
"""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
NUM_ROUNDS, NUM_CLIENTS, GOAL = 60, 200, 20


@pytest.fixture(scope="module")
def statistics():
    """The module of the soak's statistics."""
    spec = importlib.util.spec_from_file_location("soak_s", BENCHMARKS / "soak_statistics.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.mark.longest
@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_clients_that_come_and_go_leave_nothing_behind(tmp_path):
    """Descriptors, threads, objects, rows and memory of a real server; and everybody's turn.

    A client is lost in each of three ways: it closes its connection, is reset, or falls silent.
    """
    command = [
        sys.executable, str(BENCHMARKS / "soak.py"), "--clients", "200", "--minutes", "0.75",
        "--quiet", "0.15", "--churn", "1", "--goal", "20", "--training", "0.15", "--away", "3",
        "--silence", "4", "--processes", "2", "--every", "1", "--out", str(tmp_path),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "soak.json").read_text())
    assert found["verdicts"]
    assert all(holds for _, holds in found["verdicts"])
    counts = dict(found["others"])
    assert counts["rounds"] >= 10
    assert sum(counts[how] for how in ("close", "reset", "vanish")) >= 80


def drawn(rng, there, goal=GOAL, weights=None):
    """Cohorts of rounds, uniform or in proportion to weights."""
    asked = np.zeros_like(there)
    for round_, present in enumerate(there):
        of = np.flatnonzero(present)
        p = None if weights is None else weights[of] / weights[of].sum()
        asked[round_, rng.choice(of, goal, replace=False, p=p)] = True
    return asked


def presence(rng):
    """Who is there in each round: 90 %, each time another part; and who is new of them."""
    there = rng.random((NUM_ROUNDS, NUM_CLIENTS)) < 0.9
    return there, there & (rng.random(there.shape) < 0.1)


@pytest.mark.long
def test_p_values_of_uniform_draws_are_uniform(statistics):
    """Simulated draws: a share q of the p-values is below q, also far down."""
    rng = np.random.default_rng(1)
    found = []
    for _ in range(300):
        there, new = presence(rng)
        its = statistics.fairness(there, drawn(rng, there), new)
        found.append((its.p, its.p_new))
    for p in np.transpose(found):
        assert stats.kstest(p, "uniform").pvalue > 1e-3
        assert p.min() > 1e-4


@pytest.mark.parametrize(
    "unfair", ["favourites", "in turn", "no new ones", "not who was there for long"]
)
def test_unfair_draws_are_found(statistics, unfair):
    """More spread than by chance, less spread, and a group that is left out or preferred."""
    rng = np.random.default_rng(2)
    there, new = presence(rng)
    if unfair == "favourites":
        asked = drawn(rng, there, weights=np.where(np.arange(NUM_CLIENTS) < 50, 2.0, 1.0))
    elif unfair == "in turn":
        there[:] = True
        turns = (np.arange(NUM_ROUNDS * GOAL) % NUM_CLIENTS).reshape(NUM_ROUNDS, GOAL)
        asked = np.zeros_like(there)
        np.put_along_axis(asked, turns, True, axis=1)
    elif unfair == "no new ones":
        asked = drawn(rng, there & ~new)
    else:
        favoured = there & (new | (rng.random(there.shape) < 0.5))
        asked = drawn(rng, favoured)
    its = statistics.fairness(there, asked, new)
    assert min(its.p, its.p_new) < 1e-6


def test_share_of_a_group_has_the_moments_of_the_hypergeometric_distribution(statistics):
    """One round, so the distance from the mean is that of scipy's distribution."""
    there = np.ones((1, 50), np.bool_)
    new, asked = np.zeros_like(there), np.zeros_like(there)
    new[0, :12] = True
    asked[0, [0, 1, 2, 3, 4, 20, 21, 22, 23]] = True
    exact = stats.hypergeom(50, 12, 9)
    z = (5 - exact.mean()) / exact.std()
    assert statistics.fairness(there, asked, new).p_new == pytest.approx(2 * stats.norm.sf(z))


def test_clients_that_were_away_count_neither_way(statistics):
    """Who was not there is not expected to be asked, and being asked does not count."""
    rng = np.random.default_rng(3)
    there = np.ones((NUM_ROUNDS, NUM_CLIENTS), np.bool_)
    there[:, 150:] = False
    asked = drawn(rng, there)
    new = np.zeros_like(there)
    its = statistics.fairness(there, asked, new)
    assert its.p > 1e-3
    asked[:, 150:] = True
    assert statistics.fairness(there, asked, new) == its


def test_slope_ignores_outliers_and_tells_what_doubles(statistics):
    """A kibibyte a second on 100 MiB, with a tenth of the samples far off."""
    rng = np.random.default_rng(4)
    times = np.arange(0.0, 1800.0, 5.0)
    level = 100 * 2**20
    noise = rng.normal(0, 1024, len(times))
    noise[::10] += 50 * 2**20
    its = statistics.slope(times, level + 1024 * times + noise)
    assert its.per_day == pytest.approx(1024 * 86_400, rel=0.01)
    assert its.low < 1024 * 86_400 < its.high
    assert not its.doubles
    assert statistics.slope(times, level + 2048 * times).doubles
    assert statistics.slope(times, np.full(len(times), 20)).per_day == 0
