"""A federated client around a PyTorch module.

Sources: local training as in McMahan et al. (2017), "Communication-efficient learning of deep
networks from decentralized data", Algorithm 1, ClientUpdate; local tensors as in Arivazhagan et al.
(2019), "Federated learning with personalization layers".

Invariant: the result of a task depends on the received parameters, the task, the data and, for
local tensors, on earlier rounds. Repeating the task gives the same result.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import DataLoader

from fedloom.client.api import Client, SliceOf, Task
from fedloom.client.data import Growing
from fedloom.client.torch import adapters, augment, batches, loaders, local_training, loop, modules
from fedloom.client.torch.group import ALONE, Group, RankTask
from fedloom.client.torch.kept_tensors import LocalMemory
from fedloom.client.torch.narrow import Narrow, narrowed
from fedloom.client.torch.precision import How, Name, Precision, check
from fedloom.client.torch.rules import cluster_choice
from fedloom.client.torch.schedules import Schedule, schedule_of
from fedloom.client.training.adapter_scales import check_scales
from fedloom.protocol.errors import UsageError
from fedloom.protocol.task_kind import Kind

Params = Mapping[str, NDArray[Any]]


class TorchClient(Client):
    """Trains and evaluates a module on local data.

        x, y = torch.load("digits.pt")
        client = TorchClient(model, (x, y), loss=torch.nn.functional.cross_entropy)
        fedloom.client.run(client, config="client.toml")

    The round's settings give the length of the training, the batch size and the learning rate; the
    task's seed gives the order of the examples. Metrics are `loss`, and `accuracy` if the targets
    are class numbers.

    Args:
        model: the module, on any device; its state_dict names must be those of the run's model.
        train: (x, y) tensors, a map-style data set of such pairs, or a loader; None for a client
            that only evaluates. Of a loader the sampler, workers, collate function and `drop_last`
            are used; the run gives the batch size, unless there is a `batch_sampler`, and the
            task's seed the random state.
        loss: mean loss of a batch, of (outputs, targets).
        evaluate: data for evaluation, which is never trained on; None or empty for no evaluation.
        optimizer: called with (params, lr=…) for each task, such as `torch.optim.Adam`. Default:
            plain gradient descent.
        send: selects the tensors to send, by name. Default: parameters with `requires_grad`, and
            buffers; with adapters (`lora`) those that are trained. Tied tensors are sent once.
            Tensors of bool are never sent, because they have no mean.
        keep_local: keep tensors that are not sent between rounds, in this process (True) or in a
            file (a path), instead of using the server's.
        split: splits a batch of the data set or the loader into inputs and targets, such as
            `lambda batch: (batch, batch["labels"])`. Default: batches are pairs.
        width: share of each hidden dimension that this device trains; None for its share in the
            run's `train.widths`.
        precision: `fp32`, or `bf16` or `fp16` for a forward pass in 16 bits; parameters and
            updates stay float32.
        schedule: of the learning rate within a task: `linear` or `cosine` towards zero, a function
            of the completed share, or `task` for `schedule` in the run's config.
        transform: transforms of inputs, with random numbers of their own for each round, epoch and
            example: a list of those of `fedloom.client.torch.augment` and functions of one
            example, such as torchvision's. Some, such as `Normalise`, apply to evaluations too.
            Not with loaders and several ranks.
        num_threads: threads of torch in this process; None leaves torch's choice. The default is
            one: with torch's choice of two, steps of small models were 2 to 45 times slower, and
            more threads may change the last bits.

    Raises:
        UsageError: the data has no length, is empty, or has unequal lengths, or a loader cannot be
            used as it is.
    """

    def __init__(
        self,
        model: nn.Module,
        train: loaders.Data | None,
        loss: loop.Loss,
        *,
        evaluate: loaders.Data | None = None,
        optimizer: loop.MakeOptimizer = loop.SGD,
        send: Callable[[str], bool] | None = None,
        keep_local: bool | str | Path = False,
        split: batches.Split | None = None,
        width: float | None = None,
        precision: Name = "fp32",
        schedule: str | Schedule | None = None,
        transform: Sequence[augment.Step] | augment.Pipeline | None = None,
        num_threads: int | None = 1,
    ) -> None:
        if num_threads is not None:
            torch.set_num_threads(num_threads)
        self.model = model
        self._loss = loss
        self._train = batches.NONE if train is None else loaders.examples(train, split=split)
        self._evaluate = (
            None if evaluate is None else loaders.examples(evaluate, split=split, evaluates=True)
        )
        if transform is not None:
            self._transform(augment.Pipeline.of(transform), train, evaluate)
        self._optimizer = optimizer
        check(precision, model, loop.device_of(model).type)
        self._precision, self._schedule = precision, schedule
        state, self._twins = model.state_dict(), modules.twins(model)
        self._bools = {name for name, tensor in state.items() if tensor.dtype == torch.bool}
        every = model.named_parameters(remove_duplicate=False)
        frozen = {name for name, param in every if not param.requires_grad}
        if send is None:
            adapted = any(True for _ in adapters.adapted(model))
            names = adapters.sent_names(model) if adapted else state.keys() - frozen
            send = names.__contains__
        firsts = {self._twins.get(name, name) for name in filter(send, state)}
        self._sent = {n for n in state if self._twins.get(n, n) in firsts} - self._bools
        self._changing = state.keys() - self._sent - frozen
        self._keep_local = bool(keep_local)
        self._width = width
        self.group: Group = ALONE
        self._memory = LocalMemory(None if isinstance(keep_local, bool) else Path(keep_local))
        self._trains = train is not None
        if train is not None and not isinstance(train, Growing):
            self._check_some()

    def _transform(
        self, pipeline: augment.Pipeline, train: loaders.Data | None, evaluate: loaders.Data | None
    ) -> None:
        if isinstance(train, DataLoader) or isinstance(evaluate, DataLoader):
            raise UsageError(
                "Expected (x, y), a data set or a shard with transform, got a DataLoader. Give its "
                "data set, or transform there."
            )
        if train is not None:
            self._train = augment.Transformed(self._train, pipeline)
        if self._evaluate is not None:
            self._evaluate = augment.Transformed(self._evaluate, pipeline)

    def train(
        self, params: Params, task: Task
    ) -> tuple[Mapping[str, NDArray[Any] | SliceOf], int, dict[str, float]]:
        """Train from the received parameters.

        Args:
            params: the round's model by name.
            task: gives `settings`, `rule` and `seed`; training ends early if it `should_stop`.

        Returns:
            The tensors to send, which share memory with the module until the next call; the number
            of examples; metrics, as means over the training.

        Raises:
            UsageError: the parameters are not this module's, its adapters have another scale than
                the run's, or it cannot be narrowed to the run's width.
        """
        batches.fix(self._train)
        self._check_some()
        check_scales(task.local.adapters, adapters.scales(self.model))
        home = self._home(params)
        self._load(params, home, task, task.round)
        names = frozenset(params)
        del params  # the module has a copy
        before = self._copy(home)
        narrow = self._narrowed(task, home)
        schedule_of(self._schedule, task)  # checked before other ranks get the task
        job = RankTask(Kind.TRAIN, task, names, frozenset(home))
        with self.group.led(job, self.model):
            totals = self.fit(job, narrow)
        if home:
            self._memory.remember(task.run, task.round, before, self._copy(home))
        return (
            narrow.parameters(task.tensors(names) & self._sent),
            self._train.num_trained(task.settings.batch_size),
            {**totals.metrics(), **task.local.extra_metrics},
        )

    def fit(self, job: RankTask, narrow: Narrow | None = None) -> loop.MetricSums:
        """Train from the module's values, together with all ranks of the group."""
        narrow = narrow or self._narrowed(job.task, job.home)
        chosen = job.task.tensors(job.names)
        left_out = self.model.state_dict().keys() - chosen - job.home
        with local_training.frozen(narrow.module, left_out):
            return self._fit(narrow.module, job.names - job.home, job.task)

    def evaluate(self, params: Params, task: Task) -> tuple[int, dict[str, float]]:
        """Evaluate the received parameters, with the local tensors in their places.

        Returns:
            The number of examples and the metrics, as means over them; 0 and {} without data.

        Raises:
            UsageError: the parameters are not this module's, or its adapters have another scale
                than the run's.
        """
        if self._evaluate is None or not len(self._evaluate):
            return 0, {}
        batches.fix(self._evaluate)
        check_scales(task.local.adapters, adapters.scales(self.model))
        # A training task evaluates the tensors that it begins with.
        round_ = task.round if task.kind is Kind.TRAIN else None
        self._load(params, self._home(params), task, round_)
        del params  # as in `train`
        with self.group.led(RankTask(Kind.EVALUATE, task), self.model):
            totals = self.measure()
        return totals.num_examples, totals.metrics()

    def initial(self) -> dict[str, NDArray[Any]]:
        """An initial model for a run: the module's tensors, tied ones once, none of bool."""
        return dict(self._copy(modules.travelling(self.model)))

    def measure(self) -> loop.MetricSums:
        """Evaluate the module's values, together with all ranks of the group."""
        assert self._evaluate is not None
        group = self.group
        precision = Precision(self._precision, loop.device_of(self.model).type)
        in_order = batches.in_order(self._evaluate, rank=group.rank, size=group.size)
        totals = group.together(lambda: loop.measure(self.model, in_order, self._loss, precision))
        totals.merge(group)
        return totals

    @property
    def num_examples(self) -> tuple[int, int]:
        """The numbers of examples for training and for evaluation."""
        return len(self._train), 0 if self._evaluate is None else len(self._evaluate)

    def example(self) -> Any:
        """Inputs of up to three examples, as the module takes them."""
        source = self._train if self._trains or self._evaluate is None else self._evaluate
        return next(batches.in_order(source, 3))[0]

    def can_train(self) -> bool:
        """Whether the client has data for training."""
        return self._trains

    def can_evaluate(self) -> bool:
        """Whether the client has data for evaluation."""
        return self._evaluate is not None and len(self._evaluate) > 0

    def _check_some(self) -> None:
        if not len(self._train):
            raise UsageError("Expected at least one example to train on, got none.")

    def _narrowed(self, task: Task, home: Collection[str]) -> Narrow:
        width = task.width() if self._width is None else self._width
        if width == 1:
            return Narrow(self.model)
        if kept := set(home) - self._bools:
            raise UsageError(
                f"Expected no local tensors with a width of {width:g}, got {min(kept)!r}. Remove "
                "keep_local and send, or the run's train.widths."
            )
        return narrowed(self.model, width)

    def _fit(self, module: nn.Module, anchored: Collection[str], task: Task) -> loop.MetricSums:
        """Train; the client rule applies only to the parameters that the server sent."""
        asked = local_training.Asked(
            settings=task.settings,
            rule=task.rule,
            local=task.local,
            seed=task.seed,
            should_stop=task.should_stop,
            report=task.progress,
            checkpoints=task.checkpoints,
        )
        return local_training.train(
            module, self._train, self._loss, self._optimizer, asked,
            anchored=anchored, group=self.group,
            how=How(self._precision, schedule_of(self._schedule, task)),
        )  # fmt: skip

    def _load(self, params: Params, home: set[str], task: Task, round_: int | None) -> None:
        if missing := sorted(self._sent - params.keys() - self._twins.keys()):
            raise UsageError(
                f"The run's model lacks {len(missing)} tensors that this client sends, such as "
                f"{missing[0]!r}. Exclude them with `send`."
            )
        recalled = self._memory.recall(task.run, round_)
        kept = {name: value for name, value in recalled.items() if name in home}
        modules.load(self.model, {**params, **kept}, partial=True)
        if task.rule.picks:
            cluster_choice.settle_on(
                self.model, self._train, self._loss, params, task.rule, task.local
            )
            modules.load(self.model, kept, partial=True)

    def _home(self, params: Params) -> set[str]:
        """Tensors that change and stay here: kept on purpose, or unknown to the server."""
        return self._changing if self._keep_local else self._changing - params.keys()

    def _copy(self, names: set[str]) -> Params:
        arrays = modules.parameters(self.model, names.__contains__)
        return {name: np.array(value) for name, value in arrays.items()}
