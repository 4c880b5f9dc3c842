"""What the tasks of a round cost each client of a population.

A device keeps the newest model that it downloaded and the newest file beside it, as an agent does,
and downloads what it lacks. A device that accepts a task has its files from then on, even if it
fails.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.client.torch.narrow import narrowed
from fedloom.protocol.errors import UsageError
from fedloom.protocol.manifest import Manifest
from fedloom.protocol.task_description import DifferenceRef, FileRef, TaskDescription, task_seed
from fedloom.protocol.tensors.container import container_bytes
from fedloom.protocol.tensors.model_differences import Difference
from fedloom.server.planning import costs
from fedloom.simulation.clock.devices import Load, steps_in_time
from fedloom.simulation.experiment import Experiment
from fedloom.strategies import Params
from fedloom.strategies.masking.words import MaskedWords

Boxes = Mapping[str, tuple[int, ...]]
"""Shapes of the tensors of which a narrow client trains a part."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sent:
    """What clients get in a round.

    Attributes:
        model: its tensors by name.
        beside: tensors beside it, "slot/tensor".
    """

    model: Params
    beside: Params


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """The files of a round's tasks.

    Attributes:
        model: the round that made the model; 0 for the first.
        beside: the round that made the file beside it.
        model_bytes: length of the model.
        beside_bytes: of the file beside it; 0 for none.
        differences: that lead to the model, oldest first.
    """

    model: int = 0
    beside: int = 0
    model_bytes: int
    beside_bytes: int = 0
    differences: tuple[DifferenceRef, ...] = ()

    def after(self, number: int, before: Sent, now: Sent, difference: Difference | None) -> "Files":
        """Return the files after a committed round. A file with the same content stays.

        Args:
            number: of the round.
            before: what these files hold.
            now: what clients get next.
            difference: from the model of these files to the next one; None to send it whole.
        """
        made = self
        if not _equal(before.beside, now.beside):
            made = replace(made, beside=number, beside_bytes=bytes_beside(now.beside))
        if _equal(before.model, now.model):
            return made
        if difference is not None:
            size = container_bytes(difference.arrays, difference.dtypes)
            step = DifferenceRef(base=_model(self.model), file=FileRef(digest="", size_bytes=size))
            steps = costs.kept_differences((*self.differences, step), self.model_bytes)
            made = replace(made, differences=steps)
        return replace(made, model=number)

    def of(self, task: TaskDescription) -> TaskDescription:
        """Return a task with these files."""
        beside = FileRef(digest=_beside(self.beside), size_bytes=self.beside_bytes)
        return replace(
            task,
            model=FileRef(digest=_model(self.model), size_bytes=self.model_bytes),
            differences=self.differences,
            received=beside if beside.size_bytes and task.receives else None,
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        steps = [[each.base, each.file.size_bytes] for each in self.differences]
        return {
            "model": self.model,
            "beside": self.beside,
            "beside_bytes": self.beside_bytes,
            "differences": steps,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], model_bytes: int) -> "Files":
        """The inverse of `as_dict`."""
        return cls(
            model=values["model"],
            beside=values["beside"],
            model_bytes=model_bytes,
            beside_bytes=values["beside_bytes"],
            differences=tuple(
                DifferenceRef(base=base, file=FileRef(digest="", size_bytes=size))
                for base, size in values["differences"]
            ),
        )


def bytes_beside(beside: Params) -> int:
    """The length of the file of the tensors beside a model; 0 for none."""
    return container_bytes(beside) if beside else 0


def _equal(before: Params, now: Params) -> bool:
    if before is now:
        return True
    same = (name in now and np.array_equal(before[name], now[name]) for name in before)
    return before.keys() == now.keys() and all(same)


def _model(version: int) -> str:
    return f"model {version}"


def _beside(version: int) -> str:
    return f"beside {version}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Downloaded:
    """The versions of the files that each client has; −1 for none.

    Attributes:
        models: int32, shape (clients,).
        beside: of the tensors beside the model; int32, shape (clients,).
    """

    models: NDArray[np.int32]
    beside: NDArray[np.int32]

    @classmethod
    def nothing(cls, clients: int) -> "Downloaded":
        """No client has a file."""
        return cls(models=np.full(clients, -1, np.int32), beside=np.full(clients, -1, np.int32))

    def after(self, places: Sequence[int], task: TaskDescription, files: Files) -> "Downloaded":
        """Return the state after these clients accepted a task with these files."""
        models, beside, took = self.models.copy(), self.beside.copy(), list(places)
        models[took] = files.model
        if task.received is not None:
            beside[took] = files.beside
        return Downloaded(models=models, beside=beside)

    def bytes_of(self, task: TaskDescription, files: Files) -> NDArray[np.int64]:
        """Return the bytes that each client downloads for a task, shape (clients,)."""
        bases = {int(each.base.split()[1]) for each in files.differences}
        total = np.zeros(len(self.models), np.int64)
        for alone, has, name, known in (
            (replace(task, received=None), self.models, _model, {files.model, *bases}),
            (replace(task, model=None), self.beside, _beside, {files.beside}),
        ):
            found = np.full(len(has), costs.download_bytes(alone, ()), np.int64)
            for version in known:
                found[has == version] = costs.download_bytes(alone, (name(version),))
            total += found
        return total


@dataclass(frozen=True, slots=True)
class _Narrow:
    """The part of the model that clients of one width train."""

    boxes: Boxes = field(default_factory=dict)
    share: float = 1.0


class Traffic:
    """The costs of tasks for a population.

    Args:
        experiment: with its clients.
        manifest: of the model.

    Attributes:
        most_steps: of each client within `train.time_budget_s`; None without a budget.
    """

    def __init__(self, experiment: Experiment, manifest: Manifest) -> None:
        self._experiment, self._manifest = experiment, manifest
        population = experiment.population
        self._sizes = population.sizes
        shards = population.held_out_shards
        self._held_out = None if shards is None else np.array([len(s) for s in shards], np.int64)
        model = experiment.model()
        self._trainable = frozenset(n for n, p in model.named_parameters() if p.requires_grad)
        settings = experiment.spec.local_training()
        self._kinds = {1.0: _Narrow()}
        for width in set(settings.widths) - {1.0}:
            self._kinds[width] = self._narrow(width)
        self._masking = experiment.spec.build_masking()
        self._widths = None
        if settings.widths:
            self._widths = np.array([settings.width(name) for name in population.names])
        self.most_steps = self._steps_in_time()

    def _narrow(self, width: float) -> _Narrow:
        try:
            kept = narrowed(self._experiment.model(), width).kept
        except UsageError:
            if self._experiment.client is None:
                raise
            return _Narrow()  # the clients' own code decides what they send
        boxes = {name: tuple(stop - start for start, stop in box) for name, box in kept.items()}
        specs = self._manifest.specs
        part = sum(int(np.prod(boxes.get(n, spec.shape))) for n, spec in specs.items())
        return _Narrow(boxes, part / sum(spec.size for spec in specs.values()))

    def _by_width(self, value: Callable[[_Narrow], float]) -> NDArray[Any] | float:
        """A value of each client, shape (clients,); one number without widths."""
        if self._widths is None:
            return value(self._kinds[1.0])
        found = np.zeros(len(self._widths))
        for width, kind in self._kinds.items():
            found[self._widths == width] = value(kind)
        return found

    def _steps_in_time(self) -> NDArray[np.int64] | None:
        experiment = self._experiment
        spec, devices = experiment.spec, experiment.devices
        settings = spec.local_training().at(1, spec.round_config().goal)
        if settings.time_budget_s is None or devices is None:
            return None
        factor = costs.passes_a_step(spec.build_personal()) * self._by_width(lambda k: k.share)
        return steps_in_time(self._sizes, settings, devices.example_s * factor)

    def work(self, task: TaskDescription) -> costs.Work:
        """The examples that a task passes through the model on each client."""
        return costs.work(task, self._sizes, self._held_out, most_steps=self.most_steps)

    def load(self, task: TaskDescription, files: Files, has: Downloaded) -> Load:
        """The load of a task on each device."""
        work = self.work(task)
        return Load(
            trained=work.trained * self._by_width(lambda kind: kind.share),
            evaluated=work.evaluated,
            download_bytes=has.bytes_of(task, files),
            upload_bytes=self._uploads(task),
        )

    def upload_bytes(self, task: TaskDescription) -> Callable[[int], int]:
        """A function from a client's index to the bytes of its update."""
        if not task.train and self._masking is None:
            return lambda _: 0
        if task.settings.tensor_share < 1:
            return lambda place: self._drawn(task, place)
        by_width = {width: self._upload(task, kind) for width, kind in self._kinds.items()}
        return lambda place: by_width[self._width(place)]

    def _uploads(self, task: TaskDescription) -> NDArray[Any] | float | Callable[[int], int]:
        """The same as `Load.upload_bytes`."""
        if task.train and task.settings.tensor_share < 1:
            return self.upload_bytes(task)
        return self._by_width(lambda kind: self._upload(task, kind))

    def _width(self, place: int) -> float:
        return 1.0 if self._widths is None else self._widths.item(place)

    def _drawn(self, task: TaskDescription, place: int) -> int:
        """The bytes of an update of tensors that are drawn by the client's seed."""
        experiment = self._experiment
        name = experiment.population.names[place]
        seed = task_seed(experiment.spec.seed, task.round, name)
        return self._upload(replace(task, seed=seed), self._kinds[self._width(place)])

    def _upload(self, task: TaskDescription, kind: _Narrow) -> int:
        return costs.upload_bytes(
            task,
            self._manifest,
            boxes=kind.boxes,
            trainable=self._trainable,
            masked=self._masked(task),
        )

    def _masked(self, task: TaskDescription) -> tuple[int, MaskedWords] | None:
        """Bits of a value and the words of an update, in a masked run."""
        words = self._experiment.spec.masked_words(trains=task.train, evaluates=task.evaluates)
        return None if self._masking is None or words is None else (self._masking.sum_bits, words)
