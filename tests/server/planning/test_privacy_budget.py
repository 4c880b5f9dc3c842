"""What groups of clients have spent, who is over a budget, and what a refusal says."""

import math

import pytest

from fedloom.server.planning.privacy_budget import (
    Bar,
    PrivacyBudget,
    RunSpending,
    barred,
    cover,
    over_budget,
    refusal,
    reserved,
    spent,
    worst,
)
from fedloom.strategies.privacy import Privacy, Releases, Spending, composed_epsilon, plan

pytest.importorskip("dp_accounting")

DELTA = 1e-5
CLAIM = {"noise_multiplier": 10.0, "rounds": 8}
TABLE = {"mechanism": "dp_fedavg", "clip": 1.0, "noise_multiplier": 10.0, "delta": DELTA}
SPEC = {"privacy": TABLE, "cohort": {"goal": 4}, "rounds": 8}


def run(name, *, order=0.0, active=False, committed=8, opened=8, spec=SPEC, claim=CLAIM):
    """A run with noise 10 that plans 8 rounds."""
    return RunSpending.of(
        name, spec, claim, order=order, active=active, committed=committed, opened=opened
    )


def known(*runs):
    return {each.id: each for each in runs}


def gaussian(*rounds, noise=10.0):
    """Epsilon of runs of so many rounds."""
    releases = Releases(noise_multiplier=noise)
    return composed_epsilon([Spending(releases=releases, rounds=n) for n in rounds], DELTA)


def group(*runs):
    return frozenset(runs)


def budget(epsilon, label="", **more):
    return PrivacyBudget(label=label, epsilon=epsilon, delta=DELTA, **more)


def covering(limit, **member_of):
    """A budget over these clients: name → the runs that it was in."""
    return cover(limit, member_of, {name: group(*runs) for name, runs in member_of.items()})


def test_noise_of_sessions_counts_every_round_that_was_opened():
    """The server may have seen the sums of those that it abandoned; central noise costs nothing."""
    spec = {**SPEC, "privacy": {**TABLE, "mechanism": "distributed"}}
    given = {"active": True, "committed": 3, "opened": 5}
    shared, central = run("a", spec=spec, **given), run("b", **given)
    assert (shared.spent.rounds, central.spent.rounds) == (5, 3)
    assert shared.planned.rounds == central.planned.rounds == 8
    assert shared.spent.releases.summed
    runs = known(shared, central)
    both = spent(runs, group("a", "b"), DELTA)
    assert gaussian(5, 3) < both < gaussian(5) + gaussian(3)


def test_an_ended_run_counts_what_it_released_and_an_active_one_its_plan():
    """Also, where a client is still to be drawn, that of an active run it was not in."""
    runs = known(run("old", committed=3), run("new", active=True, committed=2))
    assert spent(runs, group("old", "new"), DELTA) == gaussian(3, 2)
    assert spent(runs, group("old"), DELTA) == gaussian(3)
    assert reserved(runs, group("old"), DELTA) == gaussian(3, 8)
    assert reserved(runs, group("old"), DELTA, drawable=False) == gaussian(3)
    assert reserved(runs, group("old", "new"), DELTA, drawable=False) == gaussian(3, 8)


def test_local_noise_counts_abandoned_rounds():
    """The server saw their updates; a run of 8 rounds opens no more than 8."""
    local = {**SPEC, "privacy": {**TABLE, "mechanism": "local"}}
    runs = known(run("r", active=True, committed=3, opened=5, spec=local))
    releases = Releases(noise_multiplier=10.0, local=True)
    for rounds, found in (
        (5, spent(runs, group("r"), DELTA)),
        (8, reserved(runs, group("r"), DELTA)),
    ):
        assert found == composed_epsilon([Spending(releases=releases, rounds=rounds)], DELTA)


def test_the_noise_is_the_one_of_the_stored_claim():
    """A calibration by a later version would not be what was added."""
    spec = {**SPEC, "privacy": {**TABLE, "noise_multiplier": None, "target_epsilon": 1.0}}
    runs = known(run("r", spec=spec, claim={"noise_multiplier": 20.0, "rounds": 8}))
    assert spent(runs, group("r"), DELTA) == gaussian(8, noise=20.0)


def test_every_mechanism_has_the_cost_of_its_claim():
    """By itself, as the run's own plan has it: noise 10, 8 rounds."""
    for more in (
        {},
        {"mechanism": "dp_ftrl", "restart_every": 4},
        {"mechanism": "dp_bandmf", "separation": 4},
        {"mechanism": "local"},
        {"sampling": "poisson", "population": 50},
        {"sampling": "without_replacement", "population": 50},
    ):
        own = plan(Privacy(**{**TABLE, **more}), goal=4, rounds=8).epsilon(8)
        made = run("r", spec={**SPEC, "privacy": {**TABLE, **more}})
        assert spent(known(made), group("r"), DELTA) == own


def test_an_unknown_mechanism_has_no_bound():
    """A claim that is missing, or settings that no version knows; not a run without [privacy]."""
    odd = {**SPEC, "privacy": {**TABLE, "mechanism": "other"}}
    runs = known(run("a", claim=None), run("b", spec=odd), run("c", spec={"cohort": {"goal": 4}}))
    assert spent(runs, group("a"), DELTA) == math.inf
    assert spent(runs, group("b"), DELTA) == math.inf
    assert spent(runs, group("c"), DELTA) == 0


def test_noise_from_a_seed_has_no_bound():
    """The author of the run knows the seed, and can subtract the noise."""
    seeded = run("a", spec={**SPEC, "privacy": {**TABLE, "noise": "seed"}})
    assert spent(known(seeded), group("a"), DELTA) == math.inf
    why = refusal({}, seeded, [covering(budget(100.0), w="")])
    assert "without a bound on what it reveals: its noise is from a seed" in why


def test_all_groups_over_a_budget_are_found():
    """Against every group by itself; where all runs together fit, by one composition."""
    runs = known(run("a"), run("b", committed=4), run("c", committed=2))
    groups = {"w": "a", "x": "ab", "y": "bc", "z": "abc", "v": ""}
    for limit in (gaussian(6) * 1.0001, gaussian(8) * 1.0001, gaussian(12), 100.0):
        covered = covering(budget(limit), **groups)
        asked = []

        def cost(of, asked=asked):
            asked.append(of)
            return spent(runs, of, DELTA)

        wanted = {of for of in covered.groups if spent(runs, of, DELTA) > limit}
        assert set(over_budget(covered, cost)) == wanted
        assert wanted or len(asked) == 1
    found = worst(covered.groups, lambda of: spent(runs, of, DELTA))
    assert found == (group("a", "b", "c"), gaussian(8, 4, 2))


def test_a_refusal_has_the_figures_and_what_fits():
    runs = known(run("old", committed=3), run("now", order=1.0, active=True, committed=1))
    new = run("new", order=2.0, active=True, committed=0)
    covered = covering(budget(gaussian(3, 8, 5) * 1.0001), oak=["old"], elm=[], ash=["old"])
    said = refusal(runs, new, [covered])
    assert "for 2 of 3 clients, such as ash" in said
    assert f"spent {gaussian(3):.4g}" in said
    assert f"reserve {gaussian(3, 8):.4g}" in said
    assert f"the 8 rounds of this run {gaussian(3, 8, 8):.4g}" in said
    assert "5 rounds fit" in said
    assert refusal(runs, new, [covering(budget(gaussian(3, 8, 8) * 1.0001), oak=["old"])]) == ""


def test_a_budget_of_all_clients_holds_for_those_still_to_enrol():
    """One of a label holds for clients that have it."""
    new = run("new", active=True, committed=0)
    assert "for any client" in refusal({}, new, [covering(budget(0.1))])
    assert refusal({}, new, [covering(budget(0.1, "site"))]) == ""


def test_a_run_without_privacy_is_refused_where_a_budget_covers_somebody():
    """Unless it is allowed; the same clients are barred from it."""
    public = run("new", active=True, spec={"cohort": {"goal": 4}}, claim=None)
    for limit in (budget(5.0), budget(5.0, "site")):
        covered = covering(limit, oak=["old"])
        assert "without [privacy]" in refusal({}, public, [covered])
        assert "oak" in barred({}, public, [covered])
    allowed = covering(budget(5.0, allow_public=True), oak=["old"])
    assert refusal({}, public, [allowed]) == ""
    assert barred({}, public, [allowed]) == Bar()
    assert refusal({}, public, [covering(budget(5.0, "site"))]) == ""


def test_a_client_with_too_little_budget_stays_in_the_older_run():
    """Two runs were admitted without it; then it came, with room for one."""
    first, second = (run(n, order=i, active=True, committed=1) for i, n in enumerate("ab"))
    runs = known(run("old", committed=3), first, second)
    covered = covering(budget(gaussian(3, 8) * 1.0001, "site"), oak=["old"], elm=[])
    assert barred(runs, first, [covered]) == Bar()
    assert barred(runs, second, [covered]).names == {"oak", "elm"}
    member = covering(budget(gaussian(3, 8) * 1.0001, "site"), oak=["old", "b"])
    assert barred(runs, first, [member]).names == {"oak"}  # what the younger one may release counts


def test_nobody_is_drawn_where_a_run_alone_exceeds_the_budget():
    """Not even a client that enrols later, whose name is not known."""
    bar = barred({}, run("a", active=True), [covering(budget(0.1), oak=[])])
    assert bar.everyone
    assert "a client to come" in bar
