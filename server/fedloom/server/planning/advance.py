"""The transition of a run by a committed round: a pure function for server and simulator.

    (state before the round, accepted updates) → state after it

The server maps models from files and stores the result; the simulator keeps arrays. Both get the
same bits, since every decision is here.

Invariants:
    - A round without tensors changes nothing: model, strategy state and the clients' model
      stay the same objects. Private runs add their noise all the same: otherwise the model would
      reveal that the round was empty.
    - The next model equals what would be read back from its file.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.task_description import task_seed
from fedloom.protocol.tensors import model_differences
from fedloom.protocol.tensors.container import narrow, widen
from fedloom.protocol.tensors.model_differences import Difference
from fedloom.server.engine import BestModel, RoundKind
from fedloom.server.planning.best import best_after, first_best
from fedloom.server.planning.round_result import RoundMetrics, RoundResult, measure
from fedloom.server.planning.run_setup import RunSetup
from fedloom.server.planning.spec import RunSpec
from fedloom.strategies import Means, Params, State, privacy, reduced
from fedloom.strategies.adapters import products
from fedloom.strategies.aggregation import NotedMeans
from fedloom.strategies.exact.grid import MANY_VANISHED, SUM_BITS
from fedloom.strategies.privacy import Participations


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingState:
    """The state from which the next round of a run starts.

    Attributes:
        model: its tensors by name; they may be mapped from a file.
        strategy: the strategy's state.
        held: the model that clients hold: `model` minus the loss of encoded differences.
        trained: rounds committed of those that the run wants.
        participations: of the clients, as far as the privacy claim limits them.
        best: the best model so far; None in a run that has none.
    """

    model: Params
    strategy: State
    held: Params
    trained: int = 0
    participations: Participations = field(default_factory=Participations)
    best: BestModel | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Advanced:
    """The result of a committed round.

    Attributes:
        state: of the next round; with the same `model` object if nothing changed.
        metrics: of the round.
        difference: from the model that clients held to the one that they hold now; None if
            nothing changed or models are sent whole.
        note: of the aggregation and the sum, for the operator; empty for none.
    """

    state: TrainingState
    metrics: RoundMetrics
    difference: Difference | None = None
    note: str = ""


def begin(setup: RunSetup, model: Params) -> TrainingState:
    """Return the state before the first round."""
    strategy = setup.strategy.init(model, setup.spec.seed)
    return TrainingState(model=model, strategy=strategy, held=model, best=first_best(setup.spec))


def advance(setup: RunSetup, before: TrainingState, result: RoundResult) -> Advanced:
    """Return the state after a round that closed, from the state in which it started.

    Raises:
        TooFewUpdatesError: the aggregation needs more updates; abandon the round.
        Exception: any error of a strategy; it would occur again.
    """
    trains = result.kind is RoundKind.TRAIN
    trained = before.trained + counts(setup.spec, result.kind)
    metrics = measure(setup, result, trained)
    best = best_after(setup.spec, before.best, result.number, result.kind, metrics.evaluation)
    after = replace(before, trained=trained, best=best)
    if not trains:
        return Advanced(state=after, metrics=metrics)
    if setup.privacy is not None:
        part = (report.client for report in result.reports)
        known = before.participations.after(setup.privacy.settings, part, trained)
        after = replace(after, participations=known)
    elif not any(report.has_tensors for report in result.reports):
        return Advanced(state=after, metrics=metrics)
    else:  # with [privacy] no noise protects the share
        metrics = replace(metrics, underflow=result.total.underflow)
    model, strategy, note = _step(setup, before, result)
    note = "; ".join(filter(None, (note, _underflowed(setup.spec, metrics.underflow))))
    held, difference = model, None
    if setup.broadcast is not None:
        seed = task_seed(setup.spec.seed, result.number, "")
        difference = model_differences.make(
            before.held, model, setup.manifest, setup.broadcast, seed
        )
        held = difference.result
    after = replace(after, model=model, strategy=strategy, held=held)
    return Advanced(state=after, metrics=metrics, difference=difference, note=note)


def counts(spec: RunSpec, kind: RoundKind) -> bool:
    """Whether a committed round counts towards the rounds that the run wants."""
    return kind is RoundKind.TRAIN or spec.evaluate_only


def _underflowed(spec: RunSpec, share: float | None) -> str:
    """A note on a round of which many values became zero."""
    grid = spec.grid()
    if grid is None or share is None or share < MANY_VANISHED:
        return ""
    wider = "raise sum_bits" if grid.bits < SUM_BITS[-1] else "leave out sum_bits"
    return (
        f"{share:.0%} of the values other than zero were rounded to zero in sums of "
        f"{grid.bits} bits: for another run, {grid.remedy}, or {wider}"
    )


def clip(setup: RunSetup, strategy: State) -> float | None:
    """Return the clip of the next round; None without [privacy]."""
    if setup.release is None:
        return None
    return setup.release.clip(privacy.memory_of(setup.release, strategy))


def _step(setup: RunSetup, before: TrainingState, result: RoundResult) -> tuple[Params, State, str]:
    """The next model and state of the strategy, and the aggregation's note."""
    strategy, state, model, note = setup.strategy, before.strategy, before.model, ""
    if setup.release is not None:
        assert setup.stream is not None
        new, state = privacy.finish(
            strategy,
            setup.release,
            state,
            model,
            result.total.drain(),
            round=result.number,
            stream=setup.stream,
        )
    else:
        means: Means
        noted: NotedMeans | None = None
        averaged: Mapping[str, Any] = {}
        if result.updates is None:
            if setup.spec.needs != "sum":
                raise RuntimeError(f"Expected what {setup.spec.needs} needs, got their sum alone.")
            means = result.total.drain()
        else:
            means = noted = reduced(strategy, state, result.updates)
            if (adapters := setup.spec.build_adapters()).by_products:
                means = products.Others(means)
                seed = f"{setup.spec.seed}\0{result.number}"
                averaged, note = products.average(
                    result.updates, model, adapters, seed, result.keep
                )
        new, state = strategy.finish(state, model, means)
        new |= averaged
        if noted is not None:
            note = "; ".join(filter(None, (note, noted.note)))
    for name, dtype in setup.manifest.dtypes.items():
        if dtype == "BF16":  # one tensor at a time: the others of the model stay as they are
            new[name] = _rounded(new[name])
    return new, state, note


def _rounded(array: NDArray[np.generic]) -> NDArray[np.generic]:
    return widen(narrow(array, "BF16"), "BF16")
