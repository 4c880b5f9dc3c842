"""Who may take part next: every history of a client, against the schema's own definition."""

import itertools

import pytest

from fedloom.strategies.privacy import Participations, Privacy

ROUNDS = 8
COMMON = {"clip": 1.0, "noise_multiplier": 1.0, "delta": 1e-5}


def allowed(settings):
    """Sets of rounds, from 1, that a client can be in if it is excluded as the server says."""
    found = set()
    for history in itertools.product([False, True], repeat=ROUNDS):
        seen, kept = Participations(), True
        for trained, joins in enumerate(history, 1):
            kept = kept and not (joins and "a" in seen.excluded)
            part = ["b", "a"] if joins else ["b"]
            seen = seen.after(settings, part, trained)
        if kept:
            found.add(tuple(t for t, joins in enumerate(history, 1) if joins))
    return found


def every_set():
    for size in range(ROUNDS + 1):
        yield from itertools.combinations(range(1, ROUNDS + 1), size)


@pytest.mark.parametrize("most", [None, 1, 2])
@pytest.mark.parametrize("separation", [1, 2, 3, 9])
def test_a_separation_is_between_any_two_rounds(separation, most):
    settings = Privacy(mechanism="dp_bandmf", separation=separation, participations=most, **COMMON)
    wanted = {
        rounds
        for rounds in every_set()
        if all(b - a >= separation for a, b in itertools.pairwise(rounds))
        and (most is None or len(rounds) <= most)
    }
    assert allowed(settings) == wanted


@pytest.mark.parametrize("most", [None, 1, 2])
@pytest.mark.parametrize("every", [1, 3, 4, 9])
def test_a_tree_has_a_client_once(every, most):
    settings = Privacy(mechanism="dp_ftrl", restart_every=every, participations=most, **COMMON)
    wanted = {
        rounds
        for rounds in every_set()
        if len({(t - 1) // every for t in rounds}) == len(rounds)
        and (most is None or len(rounds) <= most)
    }
    assert allowed(settings) == wanted


@pytest.mark.parametrize("most", [None, 3])
def test_only_what_the_schema_needs_is_remembered(most):
    """Without a limit those that rest; with one everybody, after any number of rounds."""
    settings = Privacy(mechanism="dp_bandmf", separation=3, participations=most, **COMMON)
    seen = Participations()
    for trained in range(1, 31):
        seen = seen.after(settings, [f"c{trained}"], trained)
    assert seen.excluded == {"c29", "c30"}
    assert len(seen.rounds) == (2 if most is None else 30)


def test_histories_of_a_ledger_and_of_a_run_are_the_same():
    """As after a restart: counted all at once, or round by round."""
    settings = Privacy(mechanism="dp_bandmf", separation=2, participations=2, **COMMON)
    seen, rounds = Participations(), {}
    for trained, part in enumerate([["a", "b"], ["c"], ["a"], [], ["b"]], 1):
        seen = seen.after(settings, part, trained)
        rounds |= {client: (rounds.get(client, (0, 0))[0] + 1, trained) for client in part}
    assert Participations.of(settings, rounds, 5) == seen
    assert seen.excluded == {"a", "b"}


def test_other_mechanisms_exclude_nobody():
    assert Participations().after(Privacy(**COMMON), ["a"], 1) == Participations()
