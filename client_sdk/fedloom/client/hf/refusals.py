"""What a Trainer, or a run with it, has that rounds cannot follow: refused by name."""

from collections.abc import Mapping
from typing import Any

from transformers import EarlyStoppingCallback, Trainer

from fedloom.client.api import Task
from fedloom.client.hf import tensors
from fedloom.protocol.errors import UsageError


def check_trainer(trainer: Trainer) -> None:
    """Refuse what would be ignored or wrong in rounds.

    Raises:
        UsageError: the trainer has such settings.
    """
    args, callbacks = trainer.args, trainer.callback_handler.callbacks
    sets = {"training": trainer.train_dataset, "evaluation": trainer.eval_dataset}
    refused = {
        "optimizers=, which would be used up in the first round": trainer.optimizer is not None,
        "model_init=, which would replace the received model": trainer.model_init is not None,
        "load_best_model_at_end": args.load_best_model_at_end,
        "auto_find_batch_size": args.auto_find_batch_size,
        "more than one process or GPU": args.world_size > 1 or args.n_gpu > 1,
        "DeepSpeed or FSDP": trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled,
        "bf16_full_eval or fp16_full_eval, which would leave the model in 16 bits for the next "
        "training": args.bf16_full_eval or args.fp16_full_eval,
        "train_sampling_strategy = 'batch_rebalance', whose order is the same in each round":
            args.train_sampling_strategy == "batch_rebalance",
        "EarlyStoppingCallback, which counts on from round to round":
            any(isinstance(each, EarlyStoppingCallback) for each in callbacks),
        "an evaluation data set in several parts, whose examples have no one number":
            isinstance(trainer.eval_dataset, Mapping),
        **{
            f"a data set for {purpose} without a length": not _has_length(data)
            for purpose, data in sets.items()
        },
    }  # fmt: skip
    if alone := tensors.trained_here_alone(trainer.model):
        raise UsageError(
            f"Expected trained parameters among peft's adapters, got {alone[0]!r}, which would be "
            "trained here and never sent. Freeze it, or name its module in modules_to_save."
        )
    if found := [name for name, is_there in refused.items() if is_there]:
        raise UsageError(
            f"Expected a Trainer that can train in rounds, got {'; '.join(found)}. Remove it."
        )


def check_task(task: Task, trainer: Trainer, *, keeps_optimizer: bool) -> None:
    """Refuse what a run asks of a training and a Trainer cannot do.

    Args:
        task: of the run.
        trainer: of this client.
        keeps_optimizer: whether the optimizer's state continues from round to round.

    Raises:
        UsageError: the task asks for it.
    """
    rule, settings, personal = task.rule, task.settings, task.local.personal
    adapters, names = task.local.adapters, frozenset(tensors.travelling(trainer.model))
    average = f"adapters.aggregate = {adapters.aggregate}, whose factors are new in each round"
    called = f"the client rule {rule.name}"
    changes = rule.name != "plain"
    optim = str(getattr(trainer.args.optim, "value", trainer.args.optim))
    refused = {
        f"{called}, which needs a pass over all examples before the training":
            rule.needs_loss or rule.needs_gradient,
        f"{called}, which chooses between models": rule.picks,
        f"{called} with fp16, which scales the gradients": changes and trainer.args.fp16,
        f"{called} with optim = {optim!r}, which takes its steps while gradients are computed":
            changes and ("lomo" in optim or optim.endswith("layerwise")),
        "train.patience": settings.patience is not None,
        "train.widths": task.width() != 1,
        "train.only or tensor_share": task.tensors(names) != names - adapters.frozen(names),
        f"{called} with {average}": changes and adapters.by_products,
        f"keep_optimizer with {average}": keeps_optimizer and adapters.by_products,
        "[personal]": personal.remembers or bool(personal.keep),
    }  # fmt: skip
    if asked := [name for name, wanted in refused.items() if wanted]:
        raise UsageError(
            f"Expected a run that transformers' Trainer can follow, got {', '.join(asked)}. "
            "Remove it from the run, or write the training with TorchClient."
        )


def _has_length(data: Any) -> bool:
    return data is None or hasattr(data, "__len__")
