"""The [masking] table: ranges, and room for the words of a session."""

from fractions import Fraction

import pytest

from fedloom.strategies.exact.grid import is_stochastic
from fedloom.strategies.masking.settings import Masking


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"group": 129}, "masking.group <= 128, got 16 and 129"),
        ({"group": 15}, "got 16 and 15"),
        ({"group": 2, "min_group": 2}, "masking.min_group >= 3"),
        ({"group": 2.5}, "whole number"),
        ({"sum_bits": 48}, "masking.sum_bits"),
        ({"simulate": "none"}, "masking.simulate"),
        ({"phase_s": 0.0}, "masking.phase_s > 0"),
        ({"phase_s": 700.0}, "masking.phase_s <= masking.session_s"),
        ({"upload_s": 700.0}, "masking.upload_s <= masking.session_s"),
        ({"precision": 0.0}, "masking.precision > 0"),
        ({"metrics": {"loss": 0.0}}, "masking.metrics.loss > 0"),
        ({"metrics": {"loss": float("inf")}}, "finite masking.metrics.loss"),
        ({"metrics": ["loss"]}, "masking.metrics as a table"),
    ],
)
def test_values_out_of_range_are_refused(given, match):
    with pytest.raises((ValueError, TypeError), match=match):
        Masking(**given)


def test_defaults():
    made = Masking()
    assert (made.group, made.min_group, made.sum_bits, made.simulate) == (64, 16, 32, "sum")
    assert made.precision_of(2.0) == 2e-6
    assert Masking(precision=0.5).precision_of(2.0) == 0.5
    assert [is_stochastic(b) for b in (16, 24, 32, 64)] == [True, True, False, False]
    assert not any(is_stochastic(b, noisy=True) for b in (16, 24, 32, 64))


def test_sums_of_words_have_room():
    """The bound that a refusal names is the largest that fits: 2^62 for all members together."""
    made = Masking(metrics={"loss": 1e4})
    made.check_words(2.0**33, 2.0**18)
    assert 64 * Fraction(2) ** 33 * 2**20 < 2**62
    with pytest.raises(ValueError, match=r"masking\.metrics\.loss < ") as refused:
        made.check_words(1.0, 2.0**33)
    fits = float(str(refused.value).split("loss < ")[1].split()[0])
    Masking(metrics={"loss": fits * 0.999}).check_words(1.0, 2.0**33)
    with pytest.raises(ValueError, match=r"masking\.metrics\.loss < "):
        Masking(metrics={"loss": fits * 1.001}).check_words(1.0, 2.0**33)
    with pytest.raises(ValueError, match="max_weight < "):
        made.check_words(2.0**37, 1.0)
