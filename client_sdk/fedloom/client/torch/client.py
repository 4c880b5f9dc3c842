"""A federated client around a PyTorch module.

Sources: local training as in McMahan et al. (2017), "Communication-efficient learning of deep
networks from decentralized data", Algorithm 1, ClientUpdate; tensors that stay at home as in
Arivazhagan et al. (2019), "Federated learning with personalization layers".

Invariant: what a task returns depends on the parameters received, the task, the data and, for
tensors kept at home, the rounds before; not on how often the task is done.
"""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedloom.client.api import Client, Kind, SliceOf, Task
from fedloom.client.data import Growing
from fedloom.client.torch import adapters, batches, local_training, loop, modules
from fedloom.client.torch.group import ALONE, Group, RankTask
from fedloom.client.torch.kept_tensors import LocalMemory
from fedloom.client.torch.narrow import Narrow, narrowed
from fedloom.client.torch.precision import How, Name, Precision, check
from fedloom.client.torch.rules import cluster_choice
from fedloom.client.torch.schedules import Schedule, schedule_of
from fedloom.protocol.errors import UsageError

Params = Mapping[str, NDArray[Any]]


class TorchClient(Client):
    """Trains and evaluates a module on data that stays here.

        x, y = torch.load("digits.pt")
        client = TorchClient(model, (x, y), loss=torch.nn.functional.cross_entropy)
        fedloom.client.run(client, config="client.toml")

    The round's settings give the length of the training, the batch size and the learning rate; the
    task's seed gives the order of the examples. Metrics are `loss`, and `accuracy` where targets
    are class numbers.

    Args:
        model: the module; its state_dict names must be those of the run's model. On any device.
        train: (x, y) tensors, a map-style data set of such pairs, or a loader of one; None for a
            client that only evaluates.
        loss: mean loss of a batch, of (outputs, targets).
        evaluate: data to evaluate on, never trained on; None or empty: nothing is evaluated here.
        optimizer: called with (params, lr=…) for each task, such as `torch.optim.Adam`;
            plain gradient descent by default.
        send: which tensors to send back, by name; all by default, or with adapters (`lora`) those
            that are trained. Tensors of bool never are: true and false have no mean.
        keep_local: keep tensors that are not sent from round to round, for as long as the process
            lives (True) or in a file over restarts (a path), instead of taking the server's.
        width: share of each hidden dimension that this device trains; None for what the run's
            `train.widths` has for its name.
        precision: `fp32`, or `bf16` or `fp16` for a forward pass in 16 bits; parameters, and what
            is sent, stay float32.
        schedule: of the learning rate within a task: `linear` or `cosine` towards zero, a function
            of the share that is done, or `task` for what the run's config has as `schedule`.
        num_threads: for torch, in this whole process; None leaves torch's choice. One is
            the default because steps of small models got 2 to 45 times slower with torch's own
            choice of two, and because more than one may change the last bits.

    Raises:
        UsageError: for data that cannot be indexed, is empty, or has unequal lengths.
    """

    def __init__(
        self,
        model: nn.Module,
        train: batches.Data | None,
        loss: loop.Loss,
        *,
        evaluate: batches.Data | None = None,
        optimizer: loop.MakeOptimizer = loop.SGD,
        send: Callable[[str], bool] = modules.everything,
        keep_local: bool | str | Path = False,
        width: float | None = None,
        precision: Name = "fp32",
        schedule: str | Schedule | None = None,
        num_threads: int | None = 1,
    ) -> None:
        if num_threads is not None:
            torch.set_num_threads(num_threads)
        self.model = model
        self._loss = loss
        self._train = batches.examples(train) if train is not None else batches.NONE
        held_out = None if evaluate is None else batches.examples(evaluate)
        self._evaluate = held_out
        self._optimizer = optimizer
        check(precision, model, loop.device_of(model).type)
        self._precision, self._schedule = precision, schedule
        if send is modules.everything and any(True for _ in adapters.adapted(model)):
            send = adapters.sent_names(model).__contains__
        state = model.state_dict()
        self._sent = {n for n, tensor in state.items() if send(n) and tensor.dtype != torch.bool}
        frozen = {n for n, param in model.named_parameters() if not param.requires_grad}
        self._changing = state.keys() - self._sent - frozen
        self._keep_local = bool(keep_local)
        self._width = width
        self.group: Group = ALONE
        self._memory = LocalMemory(None if isinstance(keep_local, bool) else Path(keep_local))
        self._trains = train is not None
        if train is not None and not isinstance(train, Growing):
            self._check_some()

    def train(
        self, params: Params, task: Task
    ) -> tuple[Mapping[str, NDArray[Any] | SliceOf], int, dict[str, float]]:
        """Train from the received parameters.

        Args:
            params: the round's model by name.
            task: its `settings`, `rule` and `seed` are followed; training ends early once it
                `should_stop`.

        Returns:
            The tensors to send, sharing memory with the module until the next call; the number of
            examples here; means over the training, as the module changed.

        Raises:
            UsageError: when the parameters are not this module's, or the module cannot be narrowed
                as the run asks.
        """
        batches.fix(self._train)
        self._check_some()
        home = self._home(params)
        self._load(params, home, task, task.round)
        names = frozenset(params)
        del params  # the module has them: a copy that nobody else wants would stay
        before = self._copy(home)
        narrow = self._narrowed(task, home)
        schedule_of(self._schedule, task)  # refused before other ranks are told
        job = RankTask(Kind.TRAIN, task, names, frozenset(home))
        with self.group.led(job, self.model):
            totals = self.fit(job, narrow)
        if home:
            self._memory.remember(task.run, task.round, before, self._copy(home))
        return (
            narrow.parameters(task.tensors(names) & self._sent),
            len(self._train),
            {**totals.metrics(), **task.local.told},
        )

    def fit(self, job: RankTask, narrow: Narrow | None = None) -> loop.MetricSums:
        """Train from the values that the module has, together with all ranks of the group."""
        narrow = narrow or self._narrowed(job.task, job.home)
        chosen = job.task.tensors(job.names)
        left_out = self.model.state_dict().keys() - chosen - job.home
        with local_training.frozen(narrow.module, left_out):
            return self._fit(narrow.module, job.names - job.home, job.task)

    def evaluate(self, params: Params, task: Task) -> tuple[int, dict[str, float]]:
        """Evaluate the received parameters, with those kept at home in their places.

        Returns:
            The number of examples evaluated and the means over them; 0 and none without data.

        Raises:
            UsageError: when the parameters are not this module's.
        """
        if self._evaluate is None or not len(self._evaluate):
            return 0, {}
        batches.fix(self._evaluate)
        # Before the training of a task that also evaluates, what that task began with counts.
        round_ = task.round if task.kind is Kind.TRAIN else None
        self._load(params, self._home(params), task, round_)
        del params  # as in `train`
        with self.group.led(RankTask(Kind.EVALUATE, task), self.model):
            totals = self.measure()
        return totals.num_examples, totals.metrics()

    def initial(self) -> dict[str, NDArray[Any]]:
        """Model that a run may begin with: the module's tensors as they are."""
        return {name: np.array(array) for name, array in modules.parameters(self.model).items()}

    def measure(self) -> loop.MetricSums:
        """Evaluate the values that the module has, together with all ranks of the group."""
        assert self._evaluate is not None
        group = self.group
        precision = Precision(self._precision, loop.device_of(self.model).type)
        in_order = batches.in_order(self._evaluate, rank=group.rank, size=group.size)
        totals = group.together(lambda: loop.measure(self.model, in_order, self._loss, precision))
        totals.merge(group)
        return totals

    @property
    def num_examples(self) -> tuple[int, int]:
        """How many there are to train and to evaluate on."""
        return len(self._train), 0 if self._evaluate is None else len(self._evaluate)

    def example(self) -> Any:
        """Inputs of a few examples, as the module takes them."""
        source = self._train if self._trains or self._evaluate is None else self._evaluate
        return source.take(torch.arange(min(3, len(source))))[0]

    def can_train(self) -> bool:
        """Whether there was data to train on."""
        return self._trains

    def can_evaluate(self) -> bool:
        """Whether there is data to evaluate on."""
        return self._evaluate is not None and len(self._evaluate) > 0

    def _check_some(self) -> None:
        if not len(self._train):
            raise UsageError("Expected at least one example to train on, got none.")

    def _narrowed(self, task: Task, home: Collection[str]) -> Narrow:
        width = task.width() if self._width is None else self._width
        if width == 1:
            return Narrow(self.model)
        if home:
            raise UsageError(
                f"Expected no tensors kept at home with a width of {width:g}, got "
                f"{min(home)!r}. Leave out keep_local and send, or the run's train.widths."
            )
        return narrowed(self.model, width)

    def _fit(self, module: nn.Module, anchored: Collection[str], task: Task) -> loop.MetricSums:
        """Train; the client rule is over the gradients of what the server sent, against that."""
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
        if missing := sorted(self._sent - params.keys()):
            raise UsageError(
                f"Expected the run's model to hold every tensor that is sent back, it lacks "
                f"{len(missing)}, such as {missing[0]!r}. Leave them out with `send`."
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
        """Tensors that change here and carry over: kept on purpose, or unknown to the server."""
        return self._changing if self._keep_local else self._changing - params.keys()

    def _copy(self, names: set[str]) -> Params:
        arrays = modules.parameters(self.model, names.__contains__)
        return {name: np.array(value) for name, value in arrays.items()}
