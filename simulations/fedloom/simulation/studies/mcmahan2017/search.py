"""One cell of a table: learning rates run to the target, one after another, and the best of them.

The folder of a cell:

    result.json          every rate so far, with its thinned curve; replaced atomically
    0.215/               the output folder of a rate's simulation

A rate that has not reached the target in the best rate's number of rounds cannot become the best
and is stopped ("behind"). A rate that does not reach the target is stopped at the cap.

Invariants: a finished rate is not repeated; an interrupted rate continues to the same bits; a rate
stopped at a cap continues if the cap is raised.
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
from fedloom.protocol.settings import merged
from fedloom.simulation import config
from fedloom.simulation.api import CHECKPOINT, simulate
from fedloom.simulation.output.environment import describe
from fedloom.simulation.output.history import INTERRUPTED, Result, RoundRecord
from fedloom.simulation.studies.mcmahan2017 import grid
from fedloom.simulation.studies.mcmahan2017.counting import Point, rounds_to, thinned
from fedloom.simulation.studies.study import without_paths
from fedloom.strategies import Params

ENDLESS = 1_000_000
"""Rounds of a simulation, which ends at its target or its cap; a cap can be raised later."""
REACHED, CAPPED, BEHIND, DIVERGED = "reached", "capped", "behind", "diverged"
CUT = "cut"
"""Interrupted by Ctrl-C: the rate continues later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateSearch:
    """A search for the best learning rate.

    Attributes:
        name: of its folder.
        settings: of its experiment, as in a TOML file, without the learning rate.
        target: accuracy on the test examples, above 0 and below 1.
        cap: rounds of a rate at most.
        start: the first rate to try, as k of 10^(k/6).
    """

    name: str
    settings: Mapping[str, Any]
    target: float
    cap: int
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One finished or interrupted learning rate.

    Attributes:
        k: of 10^(k/6).
        learning_rate: the rate itself.
        rounds: to the target, interpolated; None if it was not reached.
        ended: `reached`, `capped`, `behind`, `diverged` or `cut`.
        last_round: its last round.
        accuracy: the best on the test examples.
        wall_s: its seconds, with evaluation.
        clients_per_s: trained clients per second.
        engine: kernel and workers.
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
    def score(self) -> grid.RateScore:
        """The score of this rate."""
        return grid.RateScore(self.rounds, self.accuracy)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The result file of a cell.

    Attributes:
        name: of the cell.
        target: accuracy.
        cap: rounds of a rate at most.
        settings: of the experiment.
        environment: of the last rate.
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
        """The rate with the fewest rounds, or the highest accuracy."""
        scores = {attempt.k: attempt.score for attempt in self.attempts}
        top = grid.best(scores)
        return next((attempt for attempt in self.attempts if attempt.k == top), None)

    @property
    def in_the_middle(self) -> bool:
        """Whether worse rates were finished on both sides of the best."""
        done = (attempt for attempt in self.attempts if attempt.ended != CUT)
        return grid.in_the_middle({attempt.k: attempt.score for attempt in done})


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, after the state was written; the search can be continued."""


OnEvent = Callable[[str, Attempt | RoundRecord], None]
"""Called with a rate's name and a finished round or attempt."""


def search(
    cell: RateSearch,
    folder: Path,
    *,
    finest: int = grid.SIXTH,
    engine: Mapping[str, Any] | None = None,
    on_event: OnEvent = lambda _, __: None,
) -> SearchResult:
    """Run the unfinished rates of a cell.

    Args:
        cell: the search.
        folder: of the cell; need not exist.
        finest: step of the grid, `grid.THIRD` or `grid.SIXTH`.
        engine: settings that change only the speed.
        on_event: called after each round and each rate.

    Raises:
        UsageError: the folder holds another cell.
        Interrupted: Ctrl-C.
    """
    attempts = {attempt.k: attempt for attempt in _before(cell, folder)}
    while (k := _next(cell, attempts, finest)) is not None:
        name, bound = name_of(k), _bound(cell, attempts, k)
        settings = _settings(cell, k, engine or {})
        result = _run(settings, folder / name, bound, partial(on_event, name))
        if result.records:
            attempts[k] = _attempt(cell, k, bound, result)
            write(_found(cell, attempts), folder / "result.json")
        if result.stopped == INTERRUPTED:
            raise Interrupted
        on_event(name, attempts[k])
    return _found(cell, attempts)


def name_of(k: int) -> str:
    """A rate's name, also of its folder."""
    return f"{grid.value(k):g}"


def _next(cell: RateSearch, attempts: Mapping[int, Attempt], finest: int) -> int | None:
    """The next rate: an interrupted one, one with a raised cap, or the grid's next."""
    for k, attempt in attempts.items():
        if attempt.ended in (CUT, CAPPED, BEHIND) and attempt.last_round < _bound(
            cell, attempts, k
        ):
            return k
    return grid.following({k: a.score for k, a in attempts.items()}, cell.start, finest)


def _bound(cell: RateSearch, attempts: Mapping[int, Attempt], k: int) -> int:
    """The last round in which a rate can still become the best."""
    others = [a.rounds for other, a in attempts.items() if other != k and a.rounds is not None]
    least = min(others, default=inf)
    return cell.cap if least == inf else min(cell.cap, ceil(least))


def _settings(cell: RateSearch, k: int, engine: Mapping[str, Any]) -> dict[str, Any]:
    changes = {
        "rounds": ENDLESS,
        "train.learning_rate": grid.value(k),
        "stop.accuracy": cell.target,
        **{f"engine.{name}": value for name, value in engine.items()},
    }
    return merged(cell.settings, changes)


def _run(
    settings: Mapping[str, Any], where: Path, bound: int, on_event: Callable[[RoundRecord], None]
) -> Result:
    """Run or continue a rate until it reaches the target or its bound."""

    def on_round(record: RoundRecord, _: Params) -> bool:
        on_event(record)
        return record.trained >= bound

    resume = (where / CHECKPOINT).exists()
    experiment = config.load(settings)
    return simulate(experiment, out=where, resume=resume, on_round=on_round, show=False)


def _attempt(cell: RateSearch, k: int, bound: int, result: Result) -> Attempt:
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


def _found(cell: RateSearch, attempts: Mapping[int, Attempt]) -> SearchResult:
    described = describe()
    return SearchResult(
        name=cell.name,
        target=cell.target,
        cap=cell.cap,
        settings=without_paths(cell.settings),
        environment={name: described[name] for name in _ENVIRONMENT},
        attempts=tuple(attempts[k] for k in sorted(attempts)),
    )


def _before(cell: RateSearch, folder: Path) -> tuple[Attempt, ...]:
    path = folder / "result.json"
    if not path.exists():
        return ()
    found = read(path)
    if (found.target, found.settings) != (cell.target, without_paths(cell.settings)):
        raise UsageError(
            f"{folder} has another experiment than the cell {cell.name}. Choose another folder."
        )
    return found.attempts


def write(found: SearchResult, path: Path) -> None:
    """Replace a cell's result."""
    values = asdict(found)
    lines = [f'  "{name}": {json.dumps(value)}' for name, value in values.items()]
    attempts = ",\n    ".join(json.dumps(attempt) for attempt in values["attempts"])
    lines[-1] = f'  "attempts": [\n    {attempts}\n  ]'
    write_whole(path, "{\n" + ",\n".join(lines) + "\n}\n")


def read(path: Path) -> SearchResult:
    """Read a file of `write`.

    Raises:
        UsageError: it has another format.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        attempts = tuple(
            Attempt(**{**attempt, "curve": [tuple(point) for point in attempt["curve"]]})
            for attempt in values.pop("attempts")
        )
        return SearchResult(**values, attempts=attempts)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{path} is not the result of a cell: {error}.") from None
