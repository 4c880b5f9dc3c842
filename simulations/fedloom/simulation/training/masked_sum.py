"""Masked rounds in a simulation: who is in a session, its sum of b bits, and its words.

`masking.simulate = "sum"` adds updates as a session's members do, modulo 2^b, without masks, which
cancel. Integer sums do not depend on who is in which session, so any split gives the same bits.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from fractions import Fraction

from fedloom.protocol.errors import UsageError
from fedloom.server.engine.masked_round import most_in_sessions
from fedloom.server.planning.masking import sum_limits
from fedloom.server.planning.spec import RunSpec
from fedloom.simulation.experiment import Experiment
from fedloom.simulation.kernels.base import ClientJob, RoundTask
from fedloom.simulation.workers.base import Report
from fedloom.strategies import Partial, weight_units
from fedloom.strategies.exact.partial import WEIGHT_UNIT
from fedloom.strategies.masking.plausible import implausible, implausible_weight
from fedloom.strategies.masking.sessions import session_sizes


def check(experiment: Experiment) -> None:
    """Refuse experiments that masked sums do not support.

    Raises:
        UsageError: an attack needs each update.
    """
    masking, attack = experiment.spec.build_masking(), experiment.attack
    if masking is None:
        return
    if attack is not None and attack.colludes:
        raise UsageError(
            f"Expected no attack {attack.name} with [masking]: it needs each update. Leave out one "
            "of them."
        )


def ready(task: RoundTask, names: Sequence[str], places: Iterable[int], quorum: int) -> set[int]:
    """Return those of a round's clients that can be in sessions, as the engine chooses them.

    All members of a session train one width, or a value that few of them cover would be theirs.

    Args:
        task: of the round.
        names: of the population.
        places: indices of the accepted clients, those first that came first.
        quorum: with fewer in sessions there is no sum, and none is returned.
    """
    masking = task.masking
    if masking is None:
        return set(places)
    classes: dict[float, list[int]] = {}
    for place in places:
        classes.setdefault(_class(task, names[place]), []).append(place)
    chosen = {
        place
        for members in classes.values()
        for place in members[: most_in_sessions(len(members), masking.group, masking.min_group)]
    }
    return chosen if len(chosen) >= quorum else set()


def _class(task: RoundTask, name: str) -> float:
    """The width that a client trains; the same for all where none trains."""
    return task.settings.width(name) if task.train else 1.0


def sessions(
    task: RoundTask, names: Sequence[str], jobs: Collection[ClientJob]
) -> list[list[ClientJob]]:
    """Split the jobs of a masked round into sessions of one class, of at most `group` members."""
    assert task.masking is not None
    classes: dict[float, list[ClientJob]] = {}
    for job in sorted(jobs, key=lambda job: job.seed):  # seeds are drawn, so who is with whom is
        classes.setdefault(_class(task, names[job.client]), []).append(job)
    found = []
    for members in classes.values():
        start = 0
        for size in session_sizes(len(members), task.masking.group):
            jobs_of = members[start : start + size]
            found.append([job._replace(members=size) for job in jobs_of])
            start += size
    return found


def merge_session(
    into: Partial,
    total: Partial,
    reports: Iterable[Report],
    task: RoundTask,
    spec: RunSpec,
    *,
    members: int,
) -> float:
    """Add the sum of a session to that of its round, as words of b bits give it.

    Args:
        into: the sum of the round.
        total: of the session.
        reports: of its members.
        task: of the round.
        spec: of the run.
        members: on the roster.

    Returns:
        The sum of the weights.

    Raises:
        UsageError: members sent different tensors, or the sum exceeds the run's limits.
    """
    assert task.masking is not None
    grid = spec.grid()
    assert grid is not None
    total.wrap(task.masking.sum_bits)
    units = sum(weight_units(report.weight) for report in reports if report.has_tensors)
    limits = sum_limits(
        grid,
        max_norm=spec.max_norm if task.guard is None else task.guard.longest,
        noise=spec.session_noise(),
        members=members,
        size=sum(each.size for each in total.specs.values()),
    )
    reason = total.count and (
        implausible_weight(units, total.count, limits) or implausible(total, units, limits)
    )
    if reason:
        raise UsageError(
            f"Expected a sum of masked updates within the run's limits, got {reason}. With "
            "[masking], all clients of one width send the same tensors: change the clients' code, "
            "or leave out [masking]."
        )
    into.merge(total)
    return float(units * Fraction(WEIGHT_UNIT))


def word_sums(
    spec: RunSpec, task: RoundTask, reports: Iterable[Report]
) -> Mapping[str, int] | None:
    """Return the sums of the words of a masked round; None without [masking]."""
    words = spec.masked_words(trains=task.train, evaluates=task.evaluate)
    if words is None:
        return None
    total = dict.fromkeys(words.names, 0)  # sums of sessions are words of 64 bits, theirs is more
    for each in reports:
        said = words.of(
            each.weight if each.has_tensors else 0.0,
            {
                "training": (each.training.num_examples, each.training.metrics),
                "evaluation": (each.evaluation.num_examples, each.evaluation.metrics),
            },
        )
        for name, word in said.items():
            total[name] += word
    return total
