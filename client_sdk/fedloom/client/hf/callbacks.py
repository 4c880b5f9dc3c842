"""Callbacks that follow a Trainer's training and evaluation in a round.

Client rules change the gradients before each step of the optimizer, after their norm was clipped,
as `fedloom.client.torch` does it: with the same corrections and the same count of steps.
"""

import math
from typing import Any

from torch.utils.data import BatchSampler, IterableDataset
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from fedloom.client.api import Task
from fedloom.client.hf import tensors
from fedloom.client.torch.rules.corrections import corrections
from fedloom.client.torch.rules.step_count import step_count
from fedloom.client.torch.steps import Correction, nothing
from fedloom.client.training.length import StopRule
from fedloom.protocol.errors import UsageError


class TrainingWatch(TrainerCallback):
    """Applies the client rule, reports progress, and stops the training when it is asked to.

    Attributes:
        steps: of the optimizer, so far.
        num_examples: of an epoch, as the trainer's loader draws them.
    """

    def __init__(self, task: Task, trainer: Trainer) -> None:
        self.steps = self.num_examples = 0
        self._task, self._trainer = task, trainer
        self._correct: Correction = nothing
        self._loss = math.nan

    def begin(self, optimizer: Any, *, varies: bool) -> None:
        """Prepare the client rule, for the received values.

        Args:
            optimizer: of this training, before its first step.
            varies: whether a schedule changes the learning rate.

        Raises:
            UsageError: the optimizer does not follow the run, or the rule not this optimizer.
        """
        task, rate = self._task, self._task.settings.learning_rate
        inner = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it
        rates = [float(group["lr"]) for group in inner.param_groups]
        if not any(math.isclose(rate, each, rel_tol=1e-6) for each in rates):
            raise UsageError(
                f"Expected an optimizer with the run's learning rate {rate:g}, got "
                f"{type(inner).__name__} with {', '.join(map('{:g}'.format, rates))}. Take it from "
                "args.learning_rate; optimizer_cls_and_kwargs must not fix it."
            )
        params = tensors.trained(self._trainer.model)
        task.local.trainable = frozenset(params)
        count = step_count(inner, task.rule, task.local, rate, varies=varies)
        self._correct = count.before(
            corrections(task.rule, task.local, params, self._trainer.model)
        )

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        train_dataloader: Any = None,
        **_: Any,
    ) -> None:
        """Count the examples of an epoch, and begin the rule that ends the training.

        Raises:
            UsageError: the loader's batches are not the run's.
        """
        del state, control
        self.num_examples, size = _epoch(train_dataloader)
        if size != args.per_device_train_batch_size:
            raise UsageError(
                f"Expected a loader with batches of {args.per_device_train_batch_size}, as the run "
                f"and gradient_accumulation_steps have it, got {size}. Take it from "
                "args.per_device_train_batch_size in get_train_dataloader."
            )
        task = self._task
        steps = math.ceil(len(train_dataloader) / args.gradient_accumulation_steps)
        self._rule = StopRule(task.settings, steps, task.should_stop, report=task.progress)

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        """Change the gradients by the client rule, and count the step."""
        self._correct()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **_: Any,
    ) -> None:
        """Note the loss, for progress."""
        del args, state, control
        self._loss = float((logs or {}).get("loss", self._loss))

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Report progress, and end the training if it must end."""
        del args, state
        self.steps += 1
        self._rule.watch(self._loss, 1)
        if self._rule.should_stop():
            control.should_training_stop = True


class EvaluationCount(TrainerCallback):
    """Counts the examples of an evaluation.

    Attributes:
        num_examples: that were evaluated; 0 without a batch, or in an evaluation of one's own.
    """

    num_examples = 0

    def on_prediction_step(self, *_: Any, eval_dataloader: Any = None, **__: Any) -> None:
        """Count the examples of the loader."""
        self.num_examples, _size = _epoch(eval_dataloader)


def _epoch(loader: Any) -> tuple[int, int]:
    """The examples of an epoch, and of a batch.

    Raises:
        UsageError: the batches are of other sizes.
    """
    batches = loader.batch_sampler
    examples: Any
    if isinstance(loader.dataset, IterableDataset):
        examples, size, drops = loader.dataset, loader.batch_size, loader.drop_last
    elif type(batches) is BatchSampler:
        examples, size, drops = batches.sampler, batches.batch_size, batches.drop_last
    else:
        raise UsageError(
            f"Expected a loader with batches of one size, got {type(batches).__name__}, whose "
            "examples cannot be counted. Remove the batch sampler."
        )
    num = len(examples)
    return num - num % size if drops else num, size
