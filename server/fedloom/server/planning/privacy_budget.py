"""What clients have spent over runs, and what a budget lets them spend: pure functions.

A client spends in every run of whose population it is. What it may still spend is reserved: by
every active run that could draw it, whether or not it has.

    spent       rounds released so far, of the runs that the client was in
    reserved    these, with all rounds that active runs still plan

Invariant: no figure is below the truth. Where a run's mechanism is unknown, it is infinite.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fedloom.protocol.errors import FedloomError
from fedloom.protocol.settings import call
from fedloom.strategies.privacy import (
    MissingAccountant,
    Privacy,
    Spending,
    composed_epsilon,
    fitting_rounds,
)

Runs = frozenset[str]
"""Ids of the runs that a client was in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpending:
    """What a run spends of its clients' privacy.

    Attributes:
        id: of the run.
        order: its time of creation.
        active: whether it may release more.
        spent: so far; None for a run without [privacy], or without a known mechanism.
        planned: once it has ended; as `spent`.
        private: whether it has [privacy].
    """

    id: str
    order: float
    active: bool
    spent: Spending | None
    planned: Spending | None
    private: bool

    @classmethod
    def of(
        cls,
        run: str,
        spec: Mapping[str, Any],
        claim: Mapping[str, Any] | None,
        *,
        order: float,
        active: bool = True,
        committed: int = 0,
        opened: int = 0,
    ) -> "RunSpending":
        """Return the spending of a run by its stored claim, which has the noise that it uses.

        Args:
            run: its id.
            spec: as `RunSpec.as_dict` gives it.
            claim: of the run; None without [privacy].
            order: time of creation.
            active: whether it may open further rounds.
            committed: training rounds.
            opened: rounds, also abandoned ones: local noise is released when an update is sent.
        """
        private = bool(spec.get("privacy"))
        made = partial(cls, id=run, order=order, active=active, private=private)
        if not private:
            return made(spent=None, planned=None)
        try:
            settings = call(Privacy, spec["privacy"], table="privacy")
            if settings.noise == "seed":  # its author can subtract it
                return made(spent=None, planned=None)
            noise, last = float((claim or {})["noise_multiplier"]), int((claim or {})["rounds"])
            goal, wanted = int(spec["cohort"]["goal"]), int(spec["rounds"])
            released = committed if settings.central else max(opened, committed)
            left = last - (committed if settings.central else released)
            planned = max(left, 0) + released if active else released
            spending = partial(Spending.of, settings, noise, goal, wanted=wanted)
            return made(spent=spending(released), planned=spending(planned))
        except (FedloomError, KeyError, TypeError, ValueError):
            return made(spent=None, planned=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyBudget:
    """The most that each client of a label may spend.

    Attributes:
        label: name or name=value; empty for all clients.
        epsilon: > 0.
        delta: in (0, 1).
        allow_public: whether runs without [privacy] may draw these clients.
    """

    label: str
    epsilon: float
    delta: float
    allow_public: bool = False

    def __str__(self) -> str:
        whose = f"of the label {self.label}" if self.label else "of all clients"
        return f"the privacy budget {whose}, (epsilon {self.epsilon:g}, delta {self.delta:g}),"


@dataclass(frozen=True, slots=True, kw_only=True)
class Covered:
    """The clients that a budget covers, in groups that were in the same runs.

    Attributes:
        budget: that covers them.
        groups: runs → names of the clients. A budget of all clients always has a group without
            runs: that of clients that are still to enrol.
    """

    budget: PrivacyBudget
    groups: Mapping[Runs, Sequence[str]]


def cover(budget: PrivacyBudget, names: Iterable[str], member_of: Mapping[str, Runs]) -> Covered:
    """Return the clients that a budget covers by the runs that they were in."""
    found = defaultdict[Runs, list[str]](list)
    if not budget.label:
        found[frozenset()] = []
    for name in sorted(names):
        found[member_of.get(name, frozenset())].append(name)
    return Covered(budget=budget, groups=dict(found))


def epsilon_of(spendings: Iterable[Spending | None], delta: float) -> float:
    """Return the composed epsilon; infinity if one is unknown, or dp-accounting is missing."""
    known = list[Spending]()
    for each in spendings:
        if each is None:
            return math.inf
        known.append(each)
    try:
        return composed_epsilon(known, delta)
    except MissingAccountant:
        return math.inf


def spent(runs: Mapping[str, RunSpending], group: Runs, delta: float) -> float:
    """Return what a client has spent in the private runs that it was in."""
    return epsilon_of((runs[run].spent for run in group if runs[run].private), delta)


def reserved(
    runs: Mapping[str, RunSpending], group: Runs, delta: float, *, drawable: bool = True
) -> float:
    """Return what a client will have spent when all active private runs have ended.

    `drawable`: whether also runs that it was not in may draw it.
    """
    return epsilon_of(_reserved(runs, group, math.inf if drawable else -math.inf), delta)


def _reserved(runs: Mapping[str, RunSpending], group: Runs, until: float) -> list[Spending | None]:
    """Of the runs that a client was in, and of the active ones created until a time."""
    return [
        run.planned
        for run in runs.values()
        if run.private and (run.id in group or (run.active and run.order <= until))
    ]


def worst(groups: Iterable[Runs], epsilon: Callable[[Runs], float]) -> tuple[Runs, float]:
    """Return the group with the largest epsilon, which is monotone in the set of runs."""
    largest = list[Runs]()
    for group in sorted(set(groups), key=lambda runs: (-len(runs), sorted(runs))):
        if not any(group <= other for other in largest):
            largest.append(group)
    costs = [(epsilon(group), group) for group in largest]
    cost, found = max(costs, key=lambda pair: pair[0], default=(0.0, frozenset[str]()))
    return found, cost


def over_budget(covered: Covered, epsilon: Callable[[Runs], float]) -> dict[Runs, float]:
    """Return the groups whose epsilon exceeds the budget, with it.

    Args:
        covered: a budget and its clients.
        epsilon: of a group; monotone in the set of runs.
    """
    groups, limit = list(covered.groups), covered.budget.epsilon
    if not groups or epsilon(frozenset().union(*groups)) <= limit:
        return {}  # one composition is enough where all runs together fit
    fitting, found = list[Runs](), dict[Runs, float]()
    for group in sorted(groups, key=lambda runs: (-len(runs), sorted(runs))):
        if any(group <= larger for larger in fitting):
            continue
        cost = epsilon(group)
        if cost > limit:
            found[group] = cost
        else:
            fitting.append(group)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """The clients that a run may not draw.

    Attributes:
        names: of them.
        everyone: whether it may draw nobody, also not clients that are still to enrol.
    """

    names: frozenset[str] = frozenset()
    everyone: bool = False

    def __contains__(self, client: object) -> bool:
        return self.everyone or client in self.names


def barred(runs: Mapping[str, RunSpending], run: RunSpending, everyone: Iterable[Covered]) -> Bar:
    """Return the clients that a run may not draw, since a budget has no room for its plan.

    What is planned counts in the order of the runs' creation: a client for which two runs are too
    much stays in the older one.
    """
    runs = {**runs, run.id: run}
    names, all_of_them = set[str](), False
    for covered in everyone:
        if run.private:
            found: Iterable[Runs] = over_budget(covered, _until(runs, run, covered.budget.delta))
        else:
            found = () if covered.budget.allow_public else covered.groups
        for group in found:
            names.update(covered.groups[group])
            all_of_them = all_of_them or not (group or covered.budget.label)
    return Bar(names=frozenset(names), everyone=all_of_them)


def _until(
    runs: Mapping[str, RunSpending], run: RunSpending, delta: float
) -> Callable[[Runs], float]:
    """The cost to a group of its runs, of a run, and of the active ones before it."""
    return lambda group: epsilon_of(_reserved(runs, group | {run.id}, run.order), delta)


def refusal(runs: Mapping[str, RunSpending], run: RunSpending, everyone: Iterable[Covered]) -> str:
    """Return why budgets do not allow a run to start or to go on; empty if they do.

    Args:
        runs: all, by id; `run` may be among them.
        run: that would be active.
        everyone: budgets, with the clients that the run could draw.
    """
    for covered in everyone:
        why = _refusal({**runs, run.id: run}, run, covered)
        if why:
            return why
    return ""


def _refusal(runs: Mapping[str, RunSpending], run: RunSpending, covered: Covered) -> str:
    budget = covered.budget
    if not run.private:
        count = sum(map(len, covered.groups.values()))
        if budget.allow_public or not (count or not budget.label):
            return ""
        return (
            f"Expected a run with [privacy]: {budget} covers {counted(count)} that it could draw, "
            "and without [privacy] a run has no bound on what it reveals. Add a [privacy] table, "
            "or let an administrator allow such runs (`fedloom privacy budget set … "
            "--allow-public`)."
        )

    def after(group: Runs, rounds: int | None = None) -> float:
        mine = run.planned
        if rounds is not None and mine is not None:
            mine = Spending(releases=mine.releases, rounds=rounds)
        others = _reserved({n: r for n, r in runs.items() if n != run.id}, group, math.inf)
        return epsilon_of([*others, mine], budget.delta)

    groups = covered.groups
    found = over_budget(covered, after)
    if not found:
        return ""
    if run.planned is None:
        return (
            f"Expected a run that {budget} has room for, got one without a bound on what it "
            "reveals: its noise is from a seed that its author knows, or its claim is not known. "
            'Set privacy.noise = "secure".'
        )
    worst = max(found, key=lambda group: (found[group], sorted(group)))
    count = sum(len(groups[group]) for group in found)
    every = sum(map(len, groups.values()))
    name = f", such as {groups[worst][0]}" if groups[worst] else ""
    whose = f"for {count} of {counted(every)}{name}" if every else "for any client"
    already = spent(runs, worst - {run.id}, budget.delta)
    planned = run.planned.rounds
    fits = fitting_rounds(lambda n: after(worst, n) <= budget.epsilon, planned)
    return (
        f"Expected a run that {budget} has room for, got one that exceeds it {whose}: spent "
        f"{already:.4g}, with what active runs reserve {after(worst, 0):.4g}, and with the "
        f"{planned} rounds of this run {found[worst]:.4g}. With this noise "
        f"{fits or 'no'} {'round fits' if fits < 2 else 'rounds fit'}. Train fewer rounds, add "
        "noise, quarantine clients that have spent too much, or let an administrator raise the "
        "budget."
    )


def counted(count: int) -> str:
    """Return a number of clients in words."""
    return f"{count} client" if count == 1 else f"{count} clients"
