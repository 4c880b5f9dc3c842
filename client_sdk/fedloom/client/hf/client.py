"""A federated client around a `transformers.Trainer`, or one of its kind such as TRL's SFTTrainer.

Sources: transformers' Trainer (https://huggingface.co/docs/transformers/main_classes/trainer);
low-rank adapters as in Hu et al. 2021, https://arxiv.org/abs/2106.09685.

Invariant: a task has the result of one `Trainer.train()` from the received tensors with the task's
seed, learning rate, batch size and length; what the client cannot follow it refuses by name.
"""

import logging
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from transformers import (
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    get_scheduler,
    set_seed,
)

from fedloom.client.api import Client, Task
from fedloom.client.hf import tensors
from fedloom.client.hf.kept_optimizer import KeptOptimizer
from fedloom.client.training.length import StopRule
from fedloom.protocol.errors import UsageError

log = logging.getLogger(__name__)

_SEEDS = 1 << 32
_SPEEDS = ("runtime", "samples_per_second", "steps_per_second", "preparation_time", "epoch")
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
        _check(trainer)
        args = trainer.args
        args.save_strategy = "no"
        self.trainer, self._rounds = trainer, rounds
        self._kept = None if keep_optimizer is None else KeptOptimizer(Path(keep_optimizer))
        self._digest: str | None = None
        self._max_grad_norm = args.max_grad_norm
        if rounds is None and args.lr_scheduler_type != "constant":
            log.info(
                "the learning rate is constant within a round; give rounds=N for %s over N rounds",
                args.lr_scheduler_type,
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
    ) -> tuple[dict[str, NDArray[Any]], int, dict[str, float]]:
        """Train from the received tensors; returns all of them, the examples and the mean loss.

        Raises:
            UsageError: the model, or a setting of the run, is not this client's.
        """
        self._check_task(task)
        tensors.load(self.model, params)
        trainer, settings = self.trainer, task.settings
        size = len(trainer.train_dataset)
        per_step = settings.batch_size or size
        self._prepare(task, per_step)
        per_epoch = math.ceil(self._batches(size) / trainer.args.gradient_accumulation_steps)
        watch = _Watch(task, StopRule(settings, per_epoch, task.should_stop, report=task.progress))
        wanted = settings.steps or (settings.epochs or 0) * per_epoch
        with _instead(trainer, "create_scheduler", self._schedule(task, wanted)):
            trainer.add_callback(watch)
            try:
                done = trainer.train()
                if self._kept is not None and not task.dropped:
                    self._kept.save(task.run, task.round, trainer.optimizer)
            finally:
                trainer.remove_callback(watch)
                trainer.optimizer = trainer.lr_scheduler = None
        metrics = {"loss": float(done.training_loss)} if watch.steps else {}
        used = self._batches(size) * trainer.args.per_device_train_batch_size
        return tensors.arrays(self.model), min(size, used), metrics

    def evaluate(
        self, params: Mapping[str, NDArray[Any]], task: Task
    ) -> tuple[int, dict[str, float]]:
        """Evaluate the received tensors; returns the number of examples and the metrics.

        Raises:
            UsageError: the model is not this client's.
        """
        self._check_base(task)
        tensors.load(self.model, params)
        found = self.trainer.evaluate()
        named = {name.removeprefix("eval_"): value for name, value in found.items()}
        numbers = {n: float(v) for n, v in named.items() if isinstance(v, int | float)}
        metrics = {n: v for n, v in numbers.items() if not n.endswith(_SPEEDS)}
        return len(self.trainer.eval_dataset), metrics

    # ---- a task in the trainer's terms -------------------------------------------------------

    def _prepare(self, task: Task, per_step: int) -> None:
        args, settings = self.trainer.args, task.settings
        per_batch, rest = divmod(per_step, args.gradient_accumulation_steps)
        if rest:
            raise UsageError(
                f"Expected a batch size that gradient_accumulation_steps = "
                f"{args.gradient_accumulation_steps} divides, got {per_step}."
            )
        args.per_device_train_batch_size = per_batch
        self.trainer._train_batch_size = args.train_batch_size  # noqa: SLF001 - it reads args once
        args.learning_rate = settings.learning_rate
        args.max_steps = settings.steps or -1
        args.num_train_epochs = settings.epochs or 1
        clip_norm = settings.clip_norm
        args.max_grad_norm = self._max_grad_norm if clip_norm is None else clip_norm
        args.seed = args.data_seed = task.seed % _SEEDS
        self.trainer.optimizer = self.trainer.lr_scheduler = None
        set_seed(args.seed)

    def _batches(self, size: int) -> int:
        args = self.trainer.args
        drops = args.dataloader_drop_last
        per_batch: int = args.per_device_train_batch_size
        return size // per_batch if drops else math.ceil(size / per_batch)

    def _schedule(self, task: Task, wanted: int) -> Callable[..., LRScheduler]:
        """In place of the trainer's `create_scheduler`: one schedule over all rounds."""
        trainer, args, rounds = self.trainer, self.trainer.args, self._rounds

        def create(
            num_training_steps: int, optimizer: torch.optim.Optimizer | None = None
        ) -> LRScheduler:
            del num_training_steps  # of this round alone
            stepped = optimizer or trainer.optimizer
            assert stepped is not None
            if self._kept is not None:
                self._kept.load(task.run, task.round, stepped)
            if rounds is None:
                rates: list[Callable[[int], float]] = [_constant] * len(stepped.param_groups)
            else:
                total, done = rounds * wanted, (task.round - 1) * wanted
                whole = get_scheduler(
                    args.lr_scheduler_type, stepped, args.get_warmup_steps(total), total,
                    args.lr_scheduler_kwargs,
                )  # fmt: skip
                if not isinstance(whole, LambdaLR):
                    raise UsageError(
                        f"Expected a schedule of the number of steps with rounds={rounds}, got "
                        f"{args.lr_scheduler_type}, which follows the loss. Leave rounds out."
                    )
                rates = [partial(_later, rate, done) for rate in whole.lr_lambdas]
            made = trainer.lr_scheduler = LambdaLR(stepped, rates)
            return made

        return create

    def _check_task(self, task: Task) -> None:
        self._check_base(task)
        settings, personal = task.settings, task.local.personal
        refused = {
            f"the client rule {task.rule.name}": task.rule.name != "plain",
            "train.patience": settings.patience is not None,
            "train.widths": task.width() != 1,
            "train.only or tensor_share": task.tensors(names := tensors.travelling(self.model))
            != frozenset(names),
            "[personal]": personal.remembers or bool(personal.keep),
        }
        if asked := [name for name, wanted in refused.items() if wanted]:
            raise UsageError(
                f"Expected a run that transformers' Trainer can follow, got {', '.join(asked)}. "
                "Remove it from the run, or write the training with TorchClient."
            )

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


def _check(trainer: Trainer) -> None:
    """Refuse what would be ignored or wrong in rounds."""
    args = trainer.args
    refused = {
        "optimizers=, which would be used up in the first round": trainer.optimizer is not None,
        "model_init=, which would replace the received model": trainer.model_init is not None,
        "load_best_model_at_end": args.load_best_model_at_end,
        "auto_find_batch_size": args.auto_find_batch_size,
        "more than one process or GPU": args.world_size > 1 or args.n_gpu > 1,
        "a training data set without a length": trainer.train_dataset is not None
        and not hasattr(trainer.train_dataset, "__len__"),
    }
    if alone := tensors.trained_here_alone(trainer.model):
        raise UsageError(
            f"Expected trained parameters among peft's adapters, got {alone[0]!r}, which would be "
            "trained here and never sent. Freeze it, or name its module in modules_to_save."
        )
    if found := [name for name, is_there in refused.items() if is_there]:
        raise UsageError(
            f"Expected a Trainer that can train in rounds, got {'; '.join(found)}. Remove it."
        )


class _Watch(TrainerCallback):
    """Reports progress after each step, and stops the training when it is asked to."""

    def __init__(self, task: Task, rule: StopRule) -> None:
        self.steps = 0
        self._task, self._rule = task, rule
        self._loss = math.nan

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **_: Any,
    ) -> None:
        del args, state, control
        self._loss = float((logs or {}).get("loss", self._loss))

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        del args, state
        self.steps += 1
        self._task.local.steps = self.steps
        self._rule.watch(self._loss, 1)
        if self._rule.should_stop():
            control.should_training_stop = True


class _instead:  # noqa: N801 - a context
    """Replaces an object's method meanwhile."""

    def __init__(self, owner: object, name: str, method: object) -> None:
        self._owner, self._name, self._method = owner, name, method

    def __enter__(self) -> None:
        setattr(self._owner, self._name, self._method)

    def __exit__(self, *_: object) -> None:
        delattr(self._owner, self._name)
