"""A sweep's trials: which have ended, and which one is next.

They are stored in `study.journal`, so an interrupted sweep can continue. Each simulation has a
number, its slot, and a place: its point and its repeat. Slots are given in the order of places, and
those in the journal stay when the sweep grows to more trials or seeds. Point `p` of a grid is its
combination `p`. Otherwise it is drawn with a random stream of `p`, so an interruption, and for
random search the number of jobs, does not change the draws.

Invariant: a trial of Optuna counts if it has a `row`; one without was interrupted, and its slot is
run again with the same settings.
"""

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import count, product
from pathlib import Path
from typing import Any, NamedTuple

import optuna
from optuna.distributions import BaseDistribution
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner
from optuna.pruners import SuccessiveHalvingPruner as Asha
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.trial import FrozenTrial, Trial, TrialState

from fedloom.protocol.errors import UsageError
from fedloom.simulation.seeds import stream
from fedloom.simulation.sweep import space
from fedloom.simulation.sweep.journal import TrialJournal
from fedloom.simulation.sweep.outcome import FAILED, FINISHED, PRUNED, TrialRow
from fedloom.simulation.sweep.settings import Pruner, Sweep

FILE = "study.journal"
ATTEMPTS = 20
"""Draws before a finite space is searched for untried settings."""
_STATES = {FINISHED: TrialState.COMPLETE, PRUNED: TrialState.PRUNED, FAILED: TrialState.FAIL}


class SlotPlace(NamedTuple):
    """A simulation of a sweep.

    Attributes:
        point: number of its settings, from 0.
        repeat: number among the simulations with these settings, from 0.
    """

    point: int
    repeat: int


class TrialStore:
    """The trials of one sweep, on disk.

    Raises:
        UsageError: the folder holds a study of another sweep.
    """

    def __init__(self, sweep: Sweep, folder: Path) -> None:
        self.sweep = sweep
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._journal = TrialJournal(folder / FILE)
        self._study = optuna.create_study(
            storage=JournalStorage(self._journal),
            study_name="sweep",
            direction=sweep.objective.direction,
            pruner=_pruner(sweep.pruner),
            load_if_exists=True,
        )
        self._old_repeats = self._check_identity(folder)
        self._distributions = space.distributions(sweep.parameters)
        self._drawn: dict[int, dict[str, Any]] = {}
        self._ended: dict[int, TrialRow] = {}
        self._places: dict[int, SlotPlace] = {}
        for trial in self._study.trials:
            self._take_in(trial)
        self._places = self._placed()

    @property
    def num_slots(self) -> int:
        """Number of simulations of the sweep."""
        return len(self._places)

    @property
    def rows(self) -> tuple[TrialRow, ...]:
        """Rows of the sweep's simulations that ended, by number; others are left out."""
        return tuple(self._ended[slot] for slot in sorted(self._ended) if slot in self._places)

    def missing(self) -> list[int]:
        """Slots of simulations that have not ended, in order."""
        return [slot for slot in sorted(self._places) if slot not in self._ended]

    def place(self, slot: int) -> SlotPlace:
        """The point and the repeat of a simulation."""
        return self._places[slot]

    def retry_failed(self) -> None:
        """Free the slots of simulations that failed."""
        self._ended = {slot: row for slot, row in self._ended.items() if row.state != FAILED}

    def start(self, slot: int) -> Trial:
        """Start a slot: draw its settings, or reuse those of its interrupted trial."""
        point = self._places[slot].point
        drawn = self._drawn.get(point)
        if drawn is None and self.sweep.algorithm == "grid":
            drawn = self.sweep.points[point]
        trial = self._draw(point) if drawn is None else self._ask(_Fixed(drawn))
        trial.set_user_attr("place", self._places[slot])
        trial.set_user_attr("slot", slot)
        self._drawn[point] = dict(trial.params)
        return trial

    def report(self, trial: Trial, step: int, signal: float) -> bool:
        """Report a trial's value after a round; returns True if it should be pruned."""
        if self.sweep.pruner.name == "none":
            return False
        trial.report(signal, step)
        return step >= self.sweep.pruner.warmup_rounds and bool(trial.should_prune())

    def end(self, trial: Trial, slot: int, row: TrialRow) -> None:
        """Record how a trial ended."""
        trial.set_user_attr("row", asdict(row))
        self._tell(trial, row)
        self._journal.sync()
        self._ended[slot] = row

    def close(self) -> None:
        """Close the file."""
        self._journal.close()

    def _check_identity(self, folder: Path) -> int:
        """Refuse another sweep; returns the number of repeats of trials without a place."""
        mine = json.loads(json.dumps(self.sweep.identity(), default=str))
        known = self._study.user_attrs.get("sweep")
        if known is None:
            self._study.set_user_attr("sweep", mine)
            return 1
        known = dict(known)
        old_repeats = int(known.pop("repeats", 1))
        if differences := _differences(known, mine) or _reordered(known, mine):
            self.close()
            raise UsageError(
                f"{folder} has another sweep: {'; '.join(differences[:5])}. Choose another --out, "
                "or delete that folder."
            )
        return old_repeats

    def _placed(self) -> dict[int, SlotPlace]:
        """The place of each slot of the sweep: the stored ones, then the free slots in order."""
        known = {place: slot for slot, place in self._places.items()}
        free = (slot for slot in count() if slot not in self._places)
        wanted = product(range(self.sweep.num_points), range(self.sweep.repeats))
        places = (SlotPlace(point, repeat) for point, repeat in wanted)
        return {known[p] if p in known else next(free): p for p in places}

    def _take_in(self, trial: FrozenTrial) -> None:
        attributes = trial.user_attrs
        slot, row = attributes.get("slot"), attributes.get("row")
        if slot is not None:
            place = SlotPlace(*attributes.get("place", divmod(slot, self._old_repeats)))
            self._places[slot] = place
            self._drawn[place.point] = dict(trial.params)
            if row is not None:
                ended = TrialRow.from_dict(row)
                settings = self.sweep.with_seed(ended.settings, place.repeat)
                self._ended[slot] = replace(ended, settings=settings)
        if trial.state == TrialState.RUNNING:
            self._tell(trial.number, None if row is None else TrialRow.from_dict(row))

    def _tell(self, trial: Trial | int, row: TrialRow | None) -> None:
        state = TrialState.FAIL if row is None else _STATES[row.state]
        value = row.value if row is not None and state == TrialState.COMPLETE else None
        self._study.tell(trial, value, state=state)

    def _draw(self, point: int) -> Trial:
        """Draw settings that were not tried yet."""
        parameters = self.sweep.parameters
        tried = {self.sweep.key(drawn) for drawn in self._drawn.values()}
        numbers = stream(self.sweep.seed or 0, "sweep", point)
        finite = space.space_size(parameters) is not None
        for attempt in range(ATTEMPTS):
            trial = self._ask(_sampler(self.sweep.algorithm, int(numbers.integers(1 << 31))))
            new = self.sweep.key(trial.params) not in tried
            if new or (attempt == ATTEMPTS - 1 and not finite):
                return trial
            self._study.tell(trial, state=TrialState.FAIL)
        every = space.every(parameters)  # has more different settings than there are slots
        return self._ask(_Fixed(next(each for each in every if self.sweep.key(each) not in tried)))

    def _ask(self, sampler: BaseSampler) -> Trial:
        self._study.sampler = sampler
        return self._study.ask(self._distributions)


class _Fixed(BaseSampler):
    """Known settings as a sampler of Optuna."""

    def __init__(self, drawn: Mapping[str, Any]) -> None:
        self._known = dict(drawn)

    def infer_relative_search_space(
        self,
        study: optuna.Study,  # noqa: ARG002 - the interface
        trial: FrozenTrial,  # noqa: ARG002
    ) -> dict[str, BaseDistribution]:
        return {}

    def sample_relative(
        self,
        study: optuna.Study,  # noqa: ARG002
        trial: FrozenTrial,  # noqa: ARG002
        search_space: dict[str, BaseDistribution],  # noqa: ARG002
    ) -> dict[str, Any]:
        return {}

    def sample_independent(
        self,
        study: optuna.Study,  # noqa: ARG002
        trial: FrozenTrial,  # noqa: ARG002
        param_name: str,
        param_distribution: BaseDistribution,  # noqa: ARG002
    ) -> Any:
        return self._known[param_name]


def _sampler(algorithm: str, seed: int) -> BaseSampler:
    if algorithm == "random":
        return RandomSampler(seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return TPESampler(seed=seed, constant_liar=True)  # parallel jobs must not try the same


def _pruner(pruner: Pruner) -> BasePruner:
    match pruner.name:
        case "median":
            return MedianPruner(
                n_startup_trials=pruner.startup_trials, n_warmup_steps=pruner.warmup_rounds
            )
        case "asha":
            return Asha(min_resource=pruner.warmup_rounds, reduction_factor=pruner.factor)
        case "hyperband":
            return HyperbandPruner(
                min_resource=pruner.warmup_rounds, reduction_factor=pruner.factor
            )
        case _:
            return NopPruner()


def _differences(known: Any, mine: Any, path: str = "") -> list[str]:
    """Differences of two sweeps, as `NAME was BEFORE, is NOW`."""
    if isinstance(known, Mapping) and isinstance(mine, Mapping):
        names: Sequence[str] = list(dict.fromkeys([*known, *mine]))
        return [
            each
            for name in names
            for each in _differences(known.get(name), mine.get(name), f"{path}.{name}".lstrip("."))
        ]
    if json.dumps(known) == json.dumps(mine):
        return []
    return [f"{path} was {json.dumps(known)}, is {json.dumps(mine)}"]


def _reordered(known: Mapping[str, Any], mine: Mapping[str, Any]) -> list[str]:
    """The parameters' order, which numbers a grid's combinations, if it changed."""
    before, now = (", ".join(each["parameters"]) for each in (known, mine))
    return [] if before == now else [f"parameters were in the order {before}, are {now}"]
