"""What a server with colluders can compute: linear algebra over the seeds of masks.

A body is x_v + b_v ± k_vj …, with a column for each seed that the adversary does not know. What it
can compute of honest updates is the left null space of these rows. With c colluders that is at most
one vector: the sum of at least t − c honest updates. With 2t − n colluders single updates come out.

The adversary shows each honest member any U2 and U3 that a member accepts, has all bodies, all
secrets and shares of its colluders, and what members reveal to the quorums that it can form.
"""

from fractions import Fraction
from itertools import chain, combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.strategies.masking.sessions import colluders as tolerated_colluders
from support.secagg import threshold


def unknown_rows(n, colluders, views):
    """Each honest member's body over the unknown seeds.

    Args:
        n: members.
        colluders: set of them.
        views: honest member → (U2, U3) as it was shown.
    """
    t = threshold(n)
    shares = {("b", j): len(colluders) for j in range(n)} | {
        ("s", j): len(colluders) for j in range(n)
    }
    for view in set(views.values()):
        shared, masked = view
        group = [v for v in views if views[v] == view and v in masked]
        if len(group) + len(colluders & masked) < t:
            continue
        for j in shared:
            shares["b" if j in masked else "s", j] += len(group)
    rebuilt = {seed for seed, number in shares.items() if number >= t}
    rows = {}
    for v, (shared, _) in views.items():
        row = {} if ("b", v) in rebuilt else {("b", v): 1}
        for j in shared - {v} - colluders:
            if not {("s", v), ("s", j)} & rebuilt:
                row["k", *sorted((v, j))] = 1 if v < j else -1
        rows[v] = row
    return rows


def computable(rows):
    """A basis of the combinations of bodies without an unknown seed: dicts member → factor."""
    pivots, found = {}, []
    for v, row in rows.items():
        rest = {seed: Fraction(sign) for seed, sign in row.items()}
        factors = {v: Fraction(1)}
        while rest:
            column = min(rest)
            if column not in pivots:
                pivots[column] = rest, factors
                break
            other, other_factors = pivots[column]
            scale = rest[column] / other[column]
            rest = _minus(rest, other, scale)
            factors = _minus(factors, other_factors, scale)
        else:
            found.append(factors)
    return found


def _minus(one, other, scale):
    keys = one.keys() | other.keys()
    result = {key: one.get(key, 0) - scale * other.get(key, 0) for key in keys}
    return {key: value for key, value in result.items() if value}


def subsets(members, smallest):
    members = sorted(members)
    sizes = range(smallest, len(members) + 1)
    return map(frozenset, chain.from_iterable(combinations(members, size) for size in sizes))


def accepted_views(n, member):
    """All (U2, U3) that `Member` accepts."""
    t = threshold(n)
    return [
        (shared, masked)
        for shared in subsets(range(n), t)
        if member in shared
        for masked in subsets(shared, t)
        if member in masked
    ]


def only_a_sum(n, colluders, views):
    """Whether nothing but one sum of enough honest updates is computable."""
    found = computable(unknown_rows(n, colluders, views))
    enough = threshold(n) - len(colluders)
    return not found or (
        len(found) == 1 and len(found[0]) >= max(2, enough) and len(set(found[0].values())) == 1
    )


@pytest.mark.parametrize("n", [3, 4, *(pytest.param(n, marks=pytest.mark.long) for n in (5, 6))])
def test_no_views_of_a_small_session_tell_one_update(n):
    """Every number of tolerated colluders, and every choice of sets for every honest member."""
    for c in range(tolerated_colluders(n) + 1):
        if n == 6 and c < 2:
            continue  # 11 views of 5 or 6 members: the test below draws from them
        for honest in ([v for v in range(n) if v not in range(c)], list(range(n - c))):
            colluders = frozenset(range(n)) - frozenset(honest)
            for views in product(*(accepted_views(n, v) for v in honest)):
                shown = dict(zip(honest, views, strict=True))
                assert only_a_sum(n, colluders, shown), (colluders, shown)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_views_of_larger_sessions_tell_no_update(data):
    """Members are split into groups that are shown the same; to 20 members."""
    n = data.draw(st.integers(6, 20))
    t, everyone = threshold(n), frozenset(range(n))
    colluders = frozenset(data.draw(st.permutations(range(n)))[: tolerated_colluders(n)])
    views = []
    for _ in range(data.draw(st.integers(1, 3))):
        order = data.draw(st.permutations(sorted(everyone - colluders))) + sorted(colluders)
        shared = order[-data.draw(st.integers(t, n)) :]
        views.append(
            (frozenset(shared), frozenset(shared[-data.draw(st.integers(t, len(shared))) :]))
        )
    shown = {}
    for v in sorted(everyone - colluders):
        shared, masked = views[data.draw(st.integers(0, len(views) - 1))]
        alone = frozenset(sorted(shared - {v})[-(len(shared) - 1) :]) | {v}
        shown[v] = (
            (shared, masked)
            if v in masked
            else (alone, frozenset(sorted(alone - {v})[1 - t :]) | {v})
        )
    assert only_a_sum(n, colluders, shown)


def two_quorums(n, c):
    """Half of the honest members agree without the last one, the other half with it."""
    colluders, honest = frozenset(range(c)), list(range(c, n))
    half = len(honest) // 2
    everyone = frozenset(range(n))
    first = frozenset(honest[:half]) | colluders
    second = frozenset(honest[half:]) | colluders
    t = threshold(n)
    filled = {
        group: frozenset(sorted(everyone - group - {n - 1})[: max(0, t - len(group))]) | group
        for group in (first, second)
    }
    views = {v: (everyone, filled[first if v in first else second]) for v in honest}
    return colluders, views


def small_circle(n, c):
    """The last member masks against colluders and members that are said to have dropped out."""
    t = threshold(n)
    colluders, everyone, last = frozenset(range(c)), frozenset(range(n)), n - 1
    gone = frozenset(range(n - 1 - (n - t - 1), n - 1))
    circle = colluders | gone | {last}
    circle |= frozenset(sorted(everyone - circle)[: max(0, t - len(circle))])
    views = dict.fromkeys(everyone - colluders - gone - {last}, (everyone, everyone - gone))
    return colluders, views | {last: (circle, frozenset(sorted(circle - {last})[: t - 1]) | {last})}


@pytest.mark.parametrize("attack", [two_quorums, small_circle])
@pytest.mark.parametrize("n", range(4, 21))
def test_one_colluder_more_than_tolerated_reads_an_update(n, attack):
    """So the tests above can see an attack; with the tolerated number both fail."""
    c = 2 * threshold(n) - n
    assert {n - 1: 1} in computable(unknown_rows(n, *attack(n, c)))
    assert tolerated_colluders(n) == c - 1
    assert only_a_sum(n, *attack(n, c - 1))


@pytest.mark.parametrize("n", range(3, 129))
def test_a_threshold_of_closed_members_leaves_too_few_to_reveal(n):
    """Even where tolerated colluders sign CLOSED and reveal: an update may be masked again."""
    t, c = threshold(n), tolerated_colluders(n)
    honest_that_closed = t - c
    assert n - honest_that_closed < t
    assert t - c >= 2


def test_of_three_members_two_know_the_third():
    """Why three tolerate one colluder and not 2t − n − 1 = 2: the sum has one honest update."""
    everyone = frozenset(range(3))
    rows = unknown_rows(3, frozenset({0, 1}), {2: (everyone, everyone)})
    assert computable(rows) == [{2: 1}]
    assert tolerated_colluders(3) == 1
