"""A federated client around a `transformers.Trainer`, or one of its kind such as TRL's SFTTrainer.

Sources: transformers' Trainer (https://huggingface.co/docs/transformers/main_classes/trainer);
low-rank adapters as in Hu et al. 2021, https://arxiv.org/abs/2106.09685.

Invariant: a task has the result of one `Trainer.train()` from the received tensors with the task's
seed, learning rate, batch size and length; what the client cannot follow it refuses by name.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from transformers import (
    SchedulerType,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    get_scheduler,
    set_seed,
)

from fedloom.client.api import Client, SliceOf, Task
from fedloom.client.hf import tensors
from fedloom.client.hf.beside import Beside
from fedloom.client.hf.callbacks import EvaluationCount, TrainingWatch
from fedloom.client.hf.kept_optimizer import KeptOptimizer
from fedloom.client.hf.refusals import check_task, check_trainer
from fedloom.protocol.errors import UsageError

log = logging.getLogger(__name__)

_SEEDS = 1 << 32
_SPEEDS = frozenset(
    {
        "runtime", "samples_per_second", "steps_per_second", "model_preparation_time",
        "jit_compilation_time", "epoch",
    }
)  # fmt: skip
"""Measures of the machine, not of the model."""
BASE = "base"
"""The entry of a run's config that names the base model by its digest."""


class TrainerClient(Client):
    """Trains in rounds with a `transformers.Trainer`; see `HFClient` and `patch`.

    Args:
        trainer: of any class.
        rounds: see `HFClient`.
        keep_optimizer: see `HFClient`.

    Raises:
        UsageError: the trainer has settings that a round cannot follow.
    """

    def __init__(
        self, trainer: Trainer, rounds: int | None = None, keep_optimizer: str | Path | None = None
    ) -> None:
        check_trainer(trainer)
        args = trainer.args
        self.trainer, self._rounds = trainer, rounds
        self._kept = None if keep_optimizer is None else KeptOptimizer(Path(keep_optimizer))
        self._digest: str | None = None
        self._beside: Beside | None = None
        self._max_grad_norm = args.max_grad_norm
        if rounds is None and args.lr_scheduler_type != "constant":
            log.info(
                "the learning rate is constant within a round; give rounds=N for %s over N rounds",
                SchedulerType(args.lr_scheduler_type).value,
            )

    @property
    def model(self) -> Any:
        """The trainer's model."""
        return self.trainer.model

    @property
    def base(self) -> str:
        """Digest of what stays on the device; a run's `config.base` may require it."""
        if self._digest is None:
            self._digest = tensors.base_digest(self.model)
        return self._digest

    def initial(self) -> dict[str, NDArray[Any]]:
        """An initial model for a run: peft's adapters, or what is trained."""
        return tensors.arrays(self.model)

    def can_train(self) -> bool:
        """Whether there are examples to train on."""
        return self.trainer.train_dataset is not None

    def can_evaluate(self) -> bool:
        """Whether there are examples for evaluation."""
        return self.trainer.eval_dataset is not None

    def train(
        self, params: Mapping[str, NDArray[Any]], task: Task
    ) -> tuple[dict[str, NDArray[Any] | SliceOf], int, dict[str, float]]:
        """Train from the received tensors; returns all of them, the examples and the mean loss.

        A device of a lower rank than the run's returns slices: the leading ranks.

        Raises:
            UsageError: the model, or a setting of the run, is not this client's.
        """
        check_task(task, self.trainer, keeps_optimizer=self._kept is not None)
        self._check_base(task)
        self._load(params, task)
        shapes = {name: array.shape for name, array in params.items()}
        trainer, adapters = self.trainer, task.local.adapters
        self._prepare(task)
        watch = TrainingWatch(task, trainer)
        with tensors.unsent_buffers_kept(self.model), _added(trainer, watch):
            schedule = _instead(trainer, "create_scheduler", self._schedule(task, watch))
            with schedule, tensors.frozen(self.model, adapters):
                done = trainer.train()
            if self._kept is not None and not task.dropped:
                self._kept.save(task.run, task.round, trainer.optimizer)
        metrics = {"loss": float(done.training_loss)} if watch.steps else {}
        return tensors.returned(self.model, shapes), watch.num_examples, metrics

    def evaluate(
        self, params: Mapping[str, NDArray[Any]], task: Task
    ) -> tuple[int, dict[str, float]]:
        """Evaluate the received tensors; returns the number of examples and the metrics.

        Raises:
            UsageError: the model is not this client's.
        """
        self._check_base(task)
        self._load(params, task)
        watch = EvaluationCount()
        with _added(self.trainer, watch):
            found = self.trainer.evaluate()
        named = {name.removeprefix("eval_"): value for name, value in found.items()}
        numbers = {n: float(v) for n, v in named.items() if isinstance(v, int | float)}
        metrics = {n: v for n, v in numbers.items() if n not in _SPEEDS}
        # Without metrics, dataloader_drop_last left no batch.
        uncounted = len(self.trainer.eval_dataset) if metrics else 0
        return watch.num_examples or uncounted, metrics

    def _load(self, params: Mapping[str, NDArray[Any]], task: Task) -> None:
        if self._beside is None and tensors.has_adapters(self.model):
            self._beside = Beside(self.model, tensors.adapter_of(self.model))
        tensors.load(self.model, params, task.local.adapters, self._beside)

    # ---- a task in the trainer's terms -------------------------------------------------------

    def _prepare(self, task: Task) -> None:
        trainer, settings = self.trainer, task.settings
        args, size = trainer.args, len(trainer.train_dataset)
        per_step = settings.batch_size or size
        per_batch, rest = divmod(per_step, args.gradient_accumulation_steps)
        if rest:
            raise UsageError(
                f"Expected a batch size that gradient_accumulation_steps = "
                f"{args.gradient_accumulation_steps} divides, got {per_step}."
            )
        if not size or (args.dataloader_drop_last and size < per_batch):
            raise UsageError(
                f"Expected a batch of examples, got none: the training data set has {size}, and "
                f"dataloader_drop_last, if it is on, drops a batch of less than {per_batch}."
            )
        args.save_strategy = "no"
        args.per_device_train_batch_size = per_batch
        trainer._train_batch_size = args.train_batch_size  # noqa: SLF001 - it reads args once
        args.learning_rate = settings.learning_rate
        args.max_steps = settings.steps or -1
        args.num_train_epochs = settings.epochs or 1
        clip_norm = settings.clip_norm
        args.max_grad_norm = self._max_grad_norm if clip_norm is None else clip_norm
        args.seed = args.data_seed = task.seed % _SEEDS
        trainer.accelerator.dataloader_config.data_seed = args.data_seed  # it read args once, too
        trainer.optimizer = trainer.lr_scheduler = None
        set_seed(args.seed)

    def _schedule(self, task: Task, watch: TrainingWatch) -> Callable[..., LRScheduler]:
        """In place of the trainer's `create_scheduler`: one schedule over all rounds."""
        trainer, args, rounds = self.trainer, self.trainer.args, self._rounds

        def create(
            num_training_steps: int, optimizer: torch.optim.Optimizer | None = None
        ) -> LRScheduler:
            stepped = optimizer or trainer.optimizer
            assert stepped is not None
            if self._kept is not None:
                self._kept.load(task.run, task.round, stepped)
            watch.begin(stepped, varies=rounds is not None)
            if rounds is None:
                rates: list[Callable[[int], float]] = [_constant] * len(stepped.param_groups)
            else:
                total = rounds * num_training_steps
                done = (task.training_round - 1) * num_training_steps
                whole = get_scheduler(
                    args.lr_scheduler_type, stepped, args.get_warmup_steps(total), total,
                    args.lr_scheduler_kwargs,
                )  # fmt: skip
                if not isinstance(whole, LambdaLR):
                    raise UsageError(
                        f"Expected a schedule of the number of steps with rounds={rounds}, got "
                        f"{SchedulerType(args.lr_scheduler_type).value}, which follows the loss. "
                        "Leave rounds out."
                    )
                rates = [partial(_later, rate, done) for rate in whole.lr_lambdas]
            made = trainer.lr_scheduler = LambdaLR(stepped, rates)
            return made

        return create

    def _check_base(self, task: Task) -> None:
        wanted = task.config.get(BASE)
        if wanted is not None and wanted != self.base:
            raise UsageError(
                f"Expected the base model {str(wanted)[:12]}… that the run's config names, got "
                f"{self.base[:12]}…. Load the same model and revision on all devices."
            )


class HFClient(TrainerClient):
    """Trains a transformers model by its Trainer, and sends adapters or what is trained.

        client = HFClient(model, TrainingArguments("out"), examples)

    The run gives the learning rate, epochs or steps, and the batch size, which are the examples of
    an optimizer step: `gradient_accumulation_steps` must divide them. All other arguments count as
    they are, such as `optim`, `weight_decay`, `bf16` or `max_grad_norm`.

    Args:
        model: a transformers or peft model.
        args: of the training. Checkpoints of the Trainer are off.
        train_dataset: local examples, with a length.
        eval_dataset: for evaluation; never trained on.
        trainer_class: a class of trainers, such as TRL's `SFTTrainer`.
        rounds: of the run, over which `args.lr_scheduler_type` runs with its warm-up, from the
            run's learning rate. None: the rate is constant within a round.
        keep_optimizer: folder for the optimizer's state, such as Adam's moments, which then goes on
            from the device's last round of the run. None: it begins anew in each round.
        options: for the trainer, such as `data_collator` or `compute_metrics`.

    Raises:
        UsageError: the trainer has settings that a round cannot follow.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        args: TrainingArguments,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        *,
        trainer_class: type[Trainer] = Trainer,
        rounds: int | None = None,
        keep_optimizer: str | Path | None = None,
        **options: Any,
    ) -> None:
        trainer = trainer_class(
            model, args, train_dataset=train_dataset, eval_dataset=eval_dataset, **options
        )
        super().__init__(trainer, rounds, keep_optimizer)


def patch(
    trainer: Trainer, rounds: int | None = None, keep_optimizer: str | Path | None = None
) -> TrainerClient:
    """Make a client of a trainer.

        trainer = Trainer(model, args, train_dataset=examples)
        client = patch(trainer)

    `fedloom client run train.py:client` trains with it. Keep the script's own `trainer.train()`
    under `if __name__ == "__main__":`, for the training without a server.

    Args:
        trainer: a `transformers.Trainer` or a subclass.
        rounds: see `HFClient`.
        keep_optimizer: see `HFClient`.

    Raises:
        UsageError: the trainer has settings that a round cannot follow.
    """
    return TrainerClient(trainer, rounds, keep_optimizer)


def _constant(_step: int) -> float:
    return 1.0


def _later(rate: Callable[[int], float], steps: int, at: int) -> float:
    """A schedule, some steps later."""
    return rate(steps + at)


@contextmanager
def _added(trainer: Trainer, callback: TrainerCallback) -> Iterator[None]:
    """Adds a callback meanwhile; afterwards nothing of this round is left in the trainer."""
    trainer.add_callback(callback)
    try:
        yield
    finally:
        trainer.remove_callback(callback)
        if trainer.is_in_train and (noise := getattr(trainer, "neftune_hook_handle", None)):
            noise.remove()  # a training that failed left it
        trainer.optimizer = trainer.lr_scheduler = None


class _instead:  # noqa: N801 - a context
    """Replaces an object's method meanwhile."""

    def __init__(self, owner: object, name: str, method: object) -> None:
        self._owner, self._name, self._method = owner, name, method

    def __enter__(self) -> None:
        setattr(self._owner, self._name, self._method)

    def __exit__(self, *_: object) -> None:
        delattr(self._owner, self._name)
