"""Sizes and thresholds of sessions."""

import pytest

from fedloom.strategies.exact.grid import Grid
from fedloom.strategies.masking.sessions import (
    check_sizes,
    colluders,
    drop_outs,
    extremes,
    session_facts,
    session_sizes,
    sum_lines,
    threshold,
)


@pytest.mark.parametrize("members", range(3, 129))
def test_one_colluder_more_than_is_tolerated_breaks_a_session(members):
    """Two sets of t share honest members with c colluders, and a sum has two honest updates."""
    t, c = threshold(members), colluders(members)
    assert t == int(2 * members / 3 + 1e-9) + 1
    assert drop_outs(members) == members - t

    def holds(colluding):
        return 2 * t > members + colluding and t - colluding >= 2

    assert c >= 1
    assert holds(c)
    assert not holds(c + 1)
    assert (members == 3) == (c != 2 * t - members - 1)


def test_the_figures_of_the_specification():
    assert (threshold(64), drop_outs(64), colluders(64)) == (43, 21, 21)
    assert (threshold(16), drop_outs(16), colluders(16)) == (11, 5, 5)


@pytest.mark.parametrize("group", [3, 16, 64, 125, 128])
def test_finishers_are_split_into_as_few_sessions_of_nearly_one_size(group):
    for finishers in range(1, 1001):
        sizes = session_sizes(finishers, group)
        assert sum(sizes) == finishers
        assert sizes[0] - sizes[-1] in {0, 1}
        assert list(sizes) == sorted(sizes, reverse=True)
        assert sizes[0] <= group
        assert (len(sizes) - 1) * group < finishers


@pytest.mark.parametrize("group", [3, 7, 64])
def test_the_extremes_are_those_of_all_numbers_of_finishers(group):
    for low in range(1, 3 * group):
        for high in (low, low + 1, low + group // 2, low + group, 4 * group + 1):
            if high < low:
                continue
            every = [s for n in range(low, high + 1) for s in session_sizes(n, group)]
            most = [
                s for n in extremes(range(low, high + 1), group) for s in session_sizes(n, group)
            ]
            assert (min(most), max(most)) == (min(every), max(every)), (low, high)


def test_a_round_that_splits_into_sessions_that_are_too_small_is_refused():
    check_sizes(range(16, 65), 64, 16)
    check_sizes(range(32, 1001), 64, 32)
    with pytest.raises(
        ValueError,
        match=r"min_group <= 32 .*got 33: 65 finishers are split into sessions of 33, 32",
    ):
        check_sizes(range(33, 1001), 64, 33)


def test_lines_have_the_bound_and_both_sessions():
    grid = Grid(bits=32, max_abs=1.0, weighting="uniform", max_weight=1.0, updates=264, session=64)
    lines = sum_lines(grid.facts(1e-6) | {"masking": session_facts(16, 50)})
    assert lines[0] == (
        "32 bits, rounded to steps of 5.96e-08 = 2^-24 of a value times its weight, in sessions of "
        "16 to 50 devices"
    )
    assert "sessions of 64 updates; precision accepts 1e-06" in lines[1]
    assert lines[2].endswith("at most 1,073,741,856 < 2^31")  # 2^30 and 64 halves of a step
    assert lines[4:] == [
        "session of 16: threshold 11, for up to 5 drop-outs and 5 colluding devices",
        "session of 50: threshold 34, for up to 16 drop-outs and 17 colluding devices",
    ]
    [only] = [line for line in sum_lines(grid.facts(1.0) | {"masking": session_facts(20, 20)})
              if line.startswith("session of")]  # fmt: skip
    assert only.startswith("session of 20")
