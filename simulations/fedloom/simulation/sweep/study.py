"""A sweep's trials: which have ended, and which one is next.

They are stored in `study.journal`, so an interrupted sweep can continue. Each simulation has a
number, its slot: `point · repeats + repeat`. Point `p` of a grid is its combination `p`. Otherwise
it is drawn with a random stream of `p`, so an interruption, and for random search the number of
jobs, does not change the draws.

Invariant: a trial of Optuna counts if it has a `row`; one without was interrupted, and its slot is
run again with the same settings.
"""

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

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
        self._check_identity(folder)
        self._distributions = space.distributions(sweep.parameters)
        self._drawn: dict[int, dict[str, Any]] = {}
        self._ended: dict[int, TrialRow] = {}
        for trial in self._study.trials:
            self._take_in(trial)

    @property
    def num_slots(self) -> int:
        """Number of simulations of the sweep."""
        return self.sweep.num_points * self.sweep.repeats

    @property
    def rows(self) -> tuple[TrialRow, ...]:
        """Rows of all simulations that ended, by number."""
        return tuple(self._ended[slot] for slot in sorted(self._ended))

    def missing(self) -> list[int]:
        """Slots of simulations that have not ended, in order."""
        return [slot for slot in range(self.num_slots) if slot not in self._ended]

    def retry_failed(self) -> None:
        """Free the slots of simulations that failed."""
        self._ended = {slot: row for slot, row in self._ended.items() if row.state != FAILED}

    def start(self, slot: int) -> Trial:
        """Start a slot: draw its settings, or reuse those of its interrupted trial."""
        drawn = self._drawn.get(slot) or self._drawn.get(slot - slot % self.sweep.repeats)
        if drawn is None and self.sweep.algorithm == "grid":
            drawn = space.combination(self.sweep.parameters, slot // self.sweep.repeats)
        trial = self._ask(_Fixed(drawn)) if drawn else self._draw(slot // self.sweep.repeats)
        trial.set_user_attr("slot", slot)
        self._drawn[slot] = dict(trial.params)
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

    def _check_identity(self, folder: Path) -> None:
        mine = json.loads(json.dumps(self.sweep.identity(), default=str))
        known = self._study.user_attrs.get("sweep")
        if known is None:
            self._study.set_user_attr("sweep", mine)
            return
        if differences := _differences(known, mine):
            self.close()
            raise UsageError(
                f"{folder} has another sweep: {'; '.join(differences[:5])}. Choose another --out, "
                "or delete that folder."
            )

    def _take_in(self, trial: FrozenTrial) -> None:
        attributes = trial.user_attrs
        slot, row = attributes.get("slot"), attributes.get("row")
        if row is not None and slot is not None:
            self._ended[slot] = TrialRow(**row)
        if slot is not None:
            self._drawn[slot] = dict(trial.params)
        if trial.state == TrialState.RUNNING:
            self._tell(trial.number, None if row is None else TrialRow(**row))

    def _tell(self, trial: Trial | int, row: TrialRow | None) -> None:
        state = TrialState.FAIL if row is None else _STATES[row.state]
        value = row.value if row is not None and state == TrialState.COMPLETE else None
        self._study.tell(trial, value, state=state)

    def _draw(self, point: int) -> Trial:
        """Draw settings that were not tried yet."""
        parameters = self.sweep.parameters
        tried = {space.identity(parameters, drawn) for drawn in self._drawn.values()}
        numbers = stream(self.sweep.seed or 0, "sweep", point)
        finite = space.space_size(parameters) is not None
        for attempt in range(ATTEMPTS):
            trial = self._ask(_sampler(self.sweep.algorithm, int(numbers.integers(1 << 31))))
            new = space.identity(parameters, trial.params) not in tried
            if new or (attempt == ATTEMPTS - 1 and not finite):
                return trial
            self._study.tell(trial, state=TrialState.FAIL)
        left = space.untried(parameters, tried)
        assert left is not None, "slots do not exceed combinations"
        return self._ask(_Fixed(left))

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
