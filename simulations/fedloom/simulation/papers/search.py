"""One cell of a table: learning rates run to the target, one after another, and the best of them.

A folder holds a cell:

    result.json          every rate so far, with its thinned curve; replaced as a whole
    0.215/               the simulation of a rate, as `fedloom simulate` leaves it

A rate that has not reached the target by the round in which the best one did cannot be the best any
more, and is stopped there ("behind"). One that reaches no target is stopped at the cap.

Invariants: a rate that is done is not run again; one that was cut goes on to the same bits; one
that was stopped at a cap goes on when the cap is raised.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from math import ceil, inf
from pathlib import Path
from typing import Any

from fedloom.protocol.atomic_files import write_whole
from fedloom.protocol.errors import UsageError
from fedloom.simulation import config
from fedloom.simulation.api import CHECKPOINT, simulate
from fedloom.simulation.output.environment import describe
from fedloom.simulation.output.history import INTERRUPTED, Result, RoundRecord
from fedloom.simulation.papers import grid
from fedloom.simulation.papers.counting import Point, rounds_to, thinned

ENDLESS = 1_000_000
"""Rounds of a simulation that ends at its target or its cap; a cap in it could not be raised."""
REACHED, CAPPED, BEHIND, DIVERGED = "reached", "capped", "behind", "diverged"
CUT = "cut"
"""By Ctrl-C: a rate that will go on, and says meanwhile how far it came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What is searched.

    Attributes:
        name: of its folder.
        settings: of its experiment, as a TOML file has them, without the learning rate.
        target: accuracy on the test examples, above 0 and below 1.
        cap: rounds that a rate may take at most.
        start: the first rate to try, as k of 10^(k/6).
    """

    name: str
    settings: Mapping[str, Any]
    target: float
    cap: int
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One learning rate, run.

    Attributes:
        k: of 10^(k/6).
        learning_rate: the rate itself.
        rounds: to the target, interpolated; None when it was not reached.
        ended: `reached`, `capped`, `behind`, `diverged` or `cut`.
        last_round: the last that was run.
        accuracy: the best on the test examples.
        wall_s: seconds that it took, evaluation with it.
        clients_per_s: that were trained, of the whole time.
        engine: what ran it.
        digest: SHA-256 of the last model.
        curve: (round, accuracy), thinned.
    """

    k: int
    learning_rate: float
    rounds: float | None
    ended: str
    last_round: int
    accuracy: float
    wall_s: float
    clients_per_s: float
    engine: str
    digest: str
    curve: list[Point] = field(default_factory=list)

    @property
    def standing(self) -> grid.Standing:
        """How it did."""
        return grid.Standing(self.rounds, self.accuracy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a cell's folder says.

    Attributes:
        name: of the cell.
        target: accuracy.
        cap: rounds that rates were given.
        settings: of the experiment.
        environment: that the last rate ran in.
        attempts: by ascending rate.
    """

    name: str
    target: float
    cap: int
    settings: Mapping[str, Any]
    environment: Mapping[str, Any]
    attempts: tuple[Attempt, ...] = ()

    @property
    def best(self) -> Attempt | None:
        """The rate that took the fewest rounds, or came closest."""
        standings = {attempt.k: attempt.standing for attempt in self.attempts}
        top = grid.best(standings)
        return next((attempt for attempt in self.attempts if attempt.k == top), None)

    @property
    def in_the_middle(self) -> bool:
        """Whether worse rates were tried to their end on both sides of the best."""
        done = (attempt for attempt in self.attempts if attempt.ended != CUT)
        return grid.in_the_middle({attempt.k: attempt.standing for attempt in done})


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, after what is needed to go on was written."""


Told = Callable[[str, Attempt | RoundRecord], None]
"""Of a rate's name: each round as it ends, and what came of it."""


def search(
    cell: Cell,
    folder: Path,
    *,
    finest: int = grid.SIXTH,
    engine: Mapping[str, Any] | None = None,
    told: Told = lambda _, __: None,
) -> Found:
    """Run what is left of a cell.

    Args:
        cell: what to search.
        folder: its own; need not exist.
        finest: step of the grid, `grid.THIRD` or `grid.SIXTH`.
        engine: settings that bear on speed alone.
        told: what happens.

    Raises:
        UsageError: the folder holds another cell.
        Interrupted: Ctrl-C.
    """
    attempts = {attempt.k: attempt for attempt in _before(cell, folder)}
    while (k := _next(cell, attempts, finest)) is not None:
        name, bound = name_of(k), _bound(cell, attempts, k)
        settings = _settings(cell, k, engine or {})
        result = _run(settings, folder / name, bound, partial(told, name))
        if result.records:
            attempts[k] = _attempt(cell, k, bound, result)
            write(_found(cell, attempts), folder / "result.json")
        if result.stopped == INTERRUPTED:
            raise Interrupted
        told(name, attempts[k])
    return _found(cell, attempts)


def name_of(k: int) -> str:
    """A rate's name, of its folder too."""
    return f"{grid.value(k):g}"


def _next(cell: Cell, attempts: Mapping[int, Attempt], finest: int) -> int | None:
    """The rate to run next: one that was cut or whose cap was raised, or the grid's next."""
    for k, attempt in attempts.items():
        if attempt.ended in (CUT, CAPPED, BEHIND) and attempt.last_round < _bound(
            cell, attempts, k
        ):
            return k
    return grid.following({k: a.standing for k, a in attempts.items()}, cell.start, finest)


def _bound(cell: Cell, attempts: Mapping[int, Attempt], k: int) -> int:
    """The last round in which a rate can still become the best."""
    others = [a.rounds for other, a in attempts.items() if other != k and a.rounds is not None]
    least = min(others, default=inf)
    return cell.cap if least == inf else min(cell.cap, ceil(least))


def _settings(cell: Cell, k: int, engine: Mapping[str, Any]) -> dict[str, Any]:
    """A rate's experiment."""
    changes = {
        "rounds": ENDLESS,
        "train.learning_rate": grid.value(k),
        "stop.accuracy": cell.target,
        **{f"engine.{name}": value for name, value in engine.items()},
    }
    return config.merged(cell.settings, changes)


def _run(
    settings: Mapping[str, Any], where: Path, bound: int, told: Callable[[RoundRecord], None]
) -> Result:
    """Run a rate until it reaches the target or its bound, from where it stands."""

    def on_round(record: RoundRecord) -> bool:
        told(record)
        return record.trained >= bound

    resume = (where / CHECKPOINT).exists()
    experiment = config.load(settings)
    return simulate(experiment, out=where, resume=resume, on_round=on_round, show=False)


def _attempt(cell: Cell, k: int, bound: int, result: Result) -> Attempt:
    curve = [(r.trained, r.test["accuracy"]) for r in result.records if "accuracy" in r.test]
    rounds = rounds_to(curve, cell.target)
    last, spent = result.records[-1], sum(r.round_wall_s for r in result.records)
    if rounds is not None:
        ended = REACHED
    elif result.stopped == INTERRUPTED:
        ended = CUT
    elif last.trained < bound:
        ended = DIVERGED
    else:
        ended = CAPPED if bound == cell.cap else BEHIND
    return Attempt(
        k=k,
        learning_rate=grid.value(k),
        rounds=None if rounds is None else round(rounds, 3),
        ended=ended,
        last_round=last.trained,
        accuracy=max((accuracy for _, accuracy in curve), default=0.0),
        wall_s=round(spent, 1),
        clients_per_s=round(sum(r.accepted for r in result.records) / spent, 1),
        engine=result.engine,
        digest=result.digest,
        curve=thinned(curve, cell.target),
    )


# ---- in files ------------------------------------------------------------------------------------


_ENVIRONMENT = ("python", "cpu", "cpus", "gpus", "packages")


def _found(cell: Cell, attempts: Mapping[int, Attempt]) -> Found:
    described = describe()
    return Found(
        name=cell.name,
        target=cell.target,
        cap=cell.cap,
        settings=_lasting(cell.settings),
        environment={name: described[name] for name in _ENVIRONMENT},
        attempts=tuple(attempts[k] for k in sorted(attempts)),
    )


def _lasting(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without where this machine keeps its data."""
    kept = config.merged(settings, {})
    for name in ("folder", "download"):
        kept.get("data", {}).pop(name, None)
    return kept


def _before(cell: Cell, folder: Path) -> tuple[Attempt, ...]:
    path = folder / "result.json"
    if not path.exists():
        return ()
    found = read(path)
    if (found.target, found.settings) != (cell.target, _lasting(cell.settings)):
        raise UsageError(
            f"Expected the cell {cell.name} with its settings in {folder}, got those of another "
            "experiment. Choose another folder."
        )
    return found.attempts


def write(found: Found, path: Path) -> None:
    """Replace a cell's result."""
    values = asdict(found)
    lines = [f'  "{name}": {json.dumps(value)}' for name, value in values.items()]
    attempts = ",\n    ".join(json.dumps(attempt) for attempt in values["attempts"])
    lines[-1] = f'  "attempts": [\n    {attempts}\n  ]'
    write_whole(path, "{\n" + ",\n".join(lines) + "\n}\n")


def read(path: Path) -> Found:
    """Read what `write` wrote.

    Raises:
        UsageError: it is something else.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        attempts = tuple(
            Attempt(**{**attempt, "curve": [tuple(point) for point in attempt["curve"]]})
            for attempt in values.pop("attempts")
        )
        return Found(**values, attempts=attempts)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UsageError(f"Expected a cell's result in {path}, got: {error}.") from None
