"""The banded matrix: against dense matrices, all participations, and the tree."""

import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from fedloom.strategies.privacy import Privacy
from fedloom.strategies.privacy.banded import (
    COEFFICIENT_BITS,
    Factor,
    _powers,
    factor,
    prefix_noise_of_trees,
)
from fedloom.strategies.privacy.participation import Participations
from support.noise_matrices import mixing_of_trees, sensitivity_of_trees

UNIT = 2.0**-COEFFICIENT_BITS


def dense(made, rounds):
    """C as a matrix, from its coefficients."""
    column = np.zeros(rounds)
    column[: made.bands] = np.array(made.coefficients)[:rounds] * UNIT
    return np.array(
        [[column[t - s] if t >= s else 0.0 for s in range(rounds)] for t in range(rounds)]
    )


def schemas(rounds, separation, most):
    """Every set of rounds of a client that the server lets take part, by its own rule."""
    settings = Privacy(
        mechanism="dp_bandmf", clip=1.0, noise_multiplier=1.0, delta=1e-5,
        separation=separation, participations=most,
    )  # fmt: skip

    def grown(trained, seen, members):
        if trained == rounds:
            yield members
            return
        for joins in (False, True) if "a" not in seen.excluded else (False,):
            part = ["a"] if joins else []
            after = seen.after(settings, part, trained + 1)
            yield from grown(trained + 1, after, [*members, trained] if joins else members)

    return list(grown(0, Participations(), []))


def test_coefficients_with_half_are_those_of_the_square_root():
    """Kalinin and Lampert 2024: binom(2k, k) / 4^k; squared they are the matrix of ones."""
    made = _powers(30, 0.5)
    for k, coefficient in enumerate(made.coefficients):
        assert (
            abs(Fraction(coefficient, 1 << COEFFICIENT_BITS) - Fraction(math.comb(2 * k, k), 4**k))
            < UNIT
        )
    np.testing.assert_allclose(
        dense(made, 30) @ dense(made, 30), np.tril(np.ones((30, 30))), atol=60 * UNIT
    )


@pytest.mark.long
@pytest.mark.parametrize("bands", [1, 2, 5])
@pytest.mark.parametrize("rounds", [1, 3, 12])
@pytest.mark.parametrize("most", [None, 1, 2])
def test_no_participation_moves_more_than_the_sensitivity(bands, rounds, most):
    """All that the server allows, of updates in one direction, in both, and in random ones."""
    made, rng = factor(bands, rounds), np.random.default_rng(0)
    for separation in range(bands, bands + 3):
        stated, largest = made.sensitivity(rounds, separation, most), 0.0
        for members in schemas(rounds, separation, most):
            for scale in (1, (-1.0) ** np.arange(len(members))[:, None], None):
                updates = np.zeros((rounds, 3))
                updates[members] = [1.0, 0.0, 0.0]
                if scale is None:
                    updates[members] = rng.normal(size=(len(members), 3))
                    updates[members] /= np.linalg.norm(updates[members], axis=1, keepdims=True)
                else:
                    updates[members] *= scale
                largest = max(largest, np.linalg.norm(dense(made, rounds) @ updates))
        assert largest == pytest.approx(stated, rel=1e-12)


def test_wider_bands_than_the_separation_would_move_more():
    """So the same enumeration finds a sensitivity that is too small."""
    made = factor(4, 12)
    moved = max(np.linalg.norm(dense(made, 12)[:, m].sum(1)) for m in schemas(12, 2, None))
    assert moved > 1.2 * made.sensitivity(12, 2, None)
    with pytest.raises(ValueError, match="bands of at most separation"):
        Privacy(
            mechanism="dp_bandmf", clip=1, noise_multiplier=1, delta=1e-5, separation=2, bands=4
        )


@pytest.mark.parametrize(("bands", "rounds"), [(1, 7), (4, 50), (16, 16)])
def test_noise_of_prefixes_is_that_of_the_dense_matrices(bands, rounds):
    made = factor(bands, rounds)
    error = np.tril(np.ones((rounds, rounds))) @ np.linalg.inv(dense(made, rounds))
    np.testing.assert_allclose(made.prefix_noise(rounds), np.linalg.norm(error, axis=1))


@pytest.mark.parametrize(("bands", "rounds"), [(8, 8), (8, 60), (20, 100)])
def test_coefficients_are_nearly_the_best(bands, rounds):
    """Of all Toeplitz matrices with these bands: within 2 % of a free minimisation."""
    optimize = pytest.importorskip("scipy.optimize")

    def cost(rest):
        column = np.concatenate([[1.0], rest, np.zeros(rounds - bands)])
        inverse = np.zeros(rounds)
        inverse[0] = 1.0
        for t in range(1, rounds):
            inverse[t] = -(column[1 : t + 1][::-1] @ inverse[:t])
        noise = np.cumsum(np.cumsum(inverse) ** 2)
        return math.sqrt(noise.mean()) * np.linalg.norm(column)

    made = factor(bands, rounds)
    found = np.array(made.coefficients[1:]) * UNIT
    best = optimize.minimize(cost, found, method="L-BFGS-B").fun
    assert best <= cost(found) <= 1.02 * best


@pytest.mark.parametrize(("rounds", "every"), [(40, 16), (40, 7), (3, 8), (9, 1)])
def test_noise_of_trees_is_that_of_their_nodes(rounds, every):
    """As claims state it, against the nodes that a release adds."""
    wanted = np.linalg.norm(np.cumsum(mixing_of_trees(rounds, every), axis=0), axis=1)
    np.testing.assert_allclose(prefix_noise_of_trees(rounds, every), wanted)


def error_of_trees(rounds, every):
    """At a sensitivity of 1, from the real nodes of every round."""
    noise = np.linalg.norm(np.cumsum(mixing_of_trees(rounds, every), axis=0), axis=1)
    return noise * sensitivity_of_trees(rounds, every)


def errors(rounds, every, bands):
    """Root mean square and largest error of prefix sums, relative to the tree's, at one epsilon."""
    made = factor(bands, rounds)
    noise = made.prefix_noise(rounds) * made.sensitivity(rounds, every, None)
    tree = error_of_trees(rounds, every)
    mean = math.sqrt(float(np.mean(tree**2))) / math.sqrt(float(np.mean(noise**2)))
    return mean, tree.max() / noise.max()


def documented():
    """Rows of the page's table: rounds of a tree, bands, and both factors."""
    text = (Path(__file__).parents[3] / "docs/strategies/privacy.md").read_text()
    _, table = text.split("| tree of, separation | participations | as many bands | 64 bands |", 1)
    for line in table.split("\n\n", 1)[0].splitlines()[2:]:
        every, participations, *found = [cell.strip() for cell in line.strip("|").split("|")]
        every = int(every.replace(",", ""))
        assert int(participations) == -(-1000 // every)
        for bands, factors in zip((every, 64, 16), found, strict=True):
            if factors:
                yield every, bands, tuple(map(float, factors.split(", ")))


@pytest.mark.long
@pytest.mark.parametrize(("every", "bands", "factors"), list(documented()))
def test_errors_over_1000_rounds_relative_to_the_trees(every, bands, factors):
    """Of the same number of participations of a client, as the page says."""
    assert errors(1000, every, bands) == pytest.approx(factors, abs=0.0051)


@pytest.mark.parametrize("every", [50, 250])
def test_errors_over_1000_rounds_are_a_third_of_the_trees(every):
    """With as many bands as the separation, the mean one and the largest one."""
    assert min(errors(1000, every, every)) > 3


def test_no_matrix_is_three_times_better_for_a_single_participation():
    """The nuclear norm of the prefix sums bounds every factorisation's mean square error."""

    def nuclear(rounds):
        return sum(0.5 / math.sin((2 * j + 1) * math.pi / (4 * rounds + 2)) for j in range(rounds))

    values = np.linalg.svd(np.tril(np.ones((40, 40))), compute_uv=False)
    assert nuclear(40) == pytest.approx(values.sum())
    tree = math.sqrt(float(np.mean(error_of_trees(1000, 1000) ** 2)))
    most = tree / (nuclear(1000) / 1000)
    assert 2.4 < most < 2.5
    assert errors(1000, 1000, 1000)[0] > 0.93 * most


def test_a_factor_has_the_least_error_of_all_gamma():
    """And stored runs continue with it: these are the coefficients of the first version."""
    assert factor(4, 10).coefficients == (1048576, 503316, 372454, 307895)
    for bands, rounds in [(4, 10), (20, 300), (50, 1000)]:
        made = [_powers(bands, step / 100) for step in range(30, 101, 2)]
        best = min(one.norm(bands) * np.linalg.norm(one.prefix_noise(rounds)) for one in made)
        chosen = factor(bands, rounds)
        assert chosen.norm(bands) * np.linalg.norm(chosen.prefix_noise(rounds)) == best
    assert factor(1, 9) == Factor((1 << COEFFICIENT_BITS,))
    assert factor(64, 3).bands == 3
