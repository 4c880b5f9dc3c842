"""One client's local training, from drawing batches to a trained module.

Agent and simulator share this, so that the same task gives the same bits.

Sources: local training as in McMahan et al. 2017, https://arxiv.org/abs/1602.05629, Algorithm 1;
the head before the body as in Collins et al. 2021, https://arxiv.org/abs/2102.07078, Algorithm 1.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from torch import nn

from fedloom.client.torch import batches, loop
from fedloom.client.torch.group import ALONE, Group
from fedloom.client.torch.precision import PLAIN, How, Precision
from fedloom.client.torch.rules.own_model import Mine
from fedloom.client.torch.rules.step_count import StepCount, step_count
from fedloom.client.torch.schedules import Scheduled
from fedloom.client.torch.steps import Stepper, check_step
from fedloom.client.torch.stopping import TorchStopRule
from fedloom.client.torch.training_state import Saving, Stateful, can_save
from fedloom.client.training.checkpoints import Checkpoints
from fedloom.client.training.client_rule import RuleContext
from fedloom.client.training.length import Report, silent
from fedloom.protocol.errors import UsageError
from fedloom.strategies import ClientRule, Plain, RoundSettings

_HEAD = 1 << 62
"""Changes the seed for the head's batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A task's requirements of a training.

    Attributes:
        settings: length, batch size and learning rate.
        rule: over gradients.
        local: the rule's values and personal settings; the training adds its results.
        seed: determines the order of the examples.
        should_stop: called before each step.
        most_steps: limit of steps in place of the time budget; 0 for the time budget.
        report: called with the progress after each step.
        checkpoints: where the training is saved and resumed from; None for none.
    """

    settings: RoundSettings
    rule: ClientRule
    local: RuleContext
    seed: int
    should_stop: Callable[[], bool]
    most_steps: int = 0
    report: Report = silent
    checkpoints: Checkpoints | None = None


def train(
    module: nn.Module,
    data: batches.ExampleSource,
    loss: loop.Loss,
    optimizer: loop.MakeOptimizer,
    asked: Asked,
    *,
    anchored: Collection[str] | None = None,
    group: Group = ALONE,
    how: How = PLAIN,
) -> loop.MetricSums:
    """Train a module in place, from its values.

    Args:
        module: with the received tensors and the client's local ones.
        data: at least one example.
        loss: mean loss of a batch.
        optimizer: creates the optimizer.
        asked: the task's requirements.
        anchored: parameters that the rule applies to. Default: all that are sent.
        group: the ranks that train together.
        how: the device's settings.

    Returns:
        Metrics of the training; without the epochs of the head alone.
    """
    personal = asked.local.personal
    # With equal seeds, dropout would drop the same units on all ranks.
    with loop.seeded(asked.seed ^ group.rank, loop.device_of(module)):
        clip_norm = asked.settings.clip_norm
        correct = loop.prepare(
            module, data, loss, asked.rule, asked.local,
            clip_norm=clip_norm, anchored=anchored, group=group,
        )  # fmt: skip
        saving = _saving(module, len(data), asked, group)
        if personal.own_model is not None:
            if how != PLAIN:
                raise UsageError(
                    f"Expected precision='fp32' and a constant learning rate with personal.name = "
                    f"{personal.name!r}, got {how}."
                )
            mine = Mine(module, loss, optimizer, asked.settings, asked.local, asked.seed)
            totals = _fit(module, data, loss, optimizer, asked, correct, mine, saving=saving)
            asked.local.own_model = mine.slots()
            return totals
        if not personal.head_epochs:
            return _fit(
                module, data, loss, optimizer, asked, correct, group=group, how=how, saving=saving
            )
        names = {name for name, _ in module.named_parameters()}
        head = personal.kept(names)
        settings = replace(asked.settings, epochs=personal.head_epochs, steps=None)
        alone = replace(asked, settings=settings, seed=asked.seed ^ _HEAD, rule=Plain())
        with frozen(module, names - head):
            clip = loop.clipping(module.parameters(), clip_norm)
            if saving is None or not saving.is_past(0):
                _fit(
                    module, data, loss, optimizer, alone, clip,
                    group=group, how=how, saving=saving,
                )  # fmt: skip
        if group.says(asked.should_stop()):  # the checkpoint is of the head, maybe incomplete
            return loop.MetricSums()
        with frozen(module, head):
            return _fit(
                module, data, loss, optimizer, asked, correct,
                group=group, how=how, saving=saving, stage=1,
            )  # fmt: skip


def _fit(  # noqa: PLR0917 - all parts of a training
    module: nn.Module,
    data: batches.ExampleSource,
    loss: loop.Loss,
    optimizer: loop.MakeOptimizer,
    asked: Asked,
    correct: loop.Correction,
    mine: Mine | None = None,
    *,
    group: Group = ALONE,
    how: How = PLAIN,
    saving: Saving | None = None,
    stage: int = 0,
) -> loop.MetricSums:
    settings = asked.settings
    trainable = [param for param in module.parameters() if param.requires_grad]
    per_epoch = data.per_epoch(settings.batch_size)
    stopping = TorchStopRule(settings, per_epoch, asked.should_stop, asked.most_steps, asked.report)
    varies = how.schedule is not None

    def build() -> tuple[Stepper, StepCount]:
        made = optimizer(trainable, lr=settings.learning_rate)
        check_step(made)
        return made, step_count(
            made, asked.rule, asked.local, settings.learning_rate, varies=varies
        )

    stepper, count = group.together(build)
    correct = count.before(correct)
    precision = Precision(how.precision, loop.device_of(module).type)
    schedule = None
    if how.schedule is not None:
        schedule = Scheduled(stepper, how.schedule, stopping.wanted)
    after = None if schedule is None else schedule.step
    totals, done = loop.MetricSums(), 0
    if saving is not None and can_save(stepper):
        parts: dict[str, Stateful] = {"optimizer": stepper, "totals": totals, "stopping": stopping}
        more = {"precision": precision, "schedule": schedule, "mine": mine, "count": count.state}
        parts |= {name: part for name, part in more.items() if part is not None}
        done = saving.begin(stage, stopping.epoch, parts)
    else:
        saving = None

    def over() -> None:
        if saving is not None and group.says(asked.should_stop()):
            saving.save()  # to resume later

    stepped = None if saving is None else saving.stepped
    if group.size > 1:
        from fedloom.client.torch.site.fit import fit  # noqa: PLC0415 - torch.distributed, for sites

        return fit(
            module, data, loss, stepper, settings, asked.seed,
            correct=correct, stopping=stopping, group=group, precision=precision, after=after,
            totals=totals, skip=done, stepped=stepped, over=over,
        )  # fmt: skip
    loop.fit(
        module,
        batches.training(data, settings, asked.seed, skip=done),
        loss,
        stepper,
        correct=correct,
        stopping=stopping,
        beside=None if mine is None else mine.step,
        precision=precision,
        after=after,
        totals=totals,
        stepped=stepped,
    )
    over()
    return totals


def _saving(module: nn.Module, num_examples: int, asked: Asked, group: Group) -> Saving | None:
    """Saves the training between steps; None if rank 0 keeps no checkpoints."""
    checkpoints = asked.checkpoints or Checkpoints()
    if not group.says(checkpoints.are_kept):
        return None
    device = loop.device_of(module)
    if group.size == 1:
        return Saving(checkpoints, module, asked.local, device, num_examples)
    from fedloom.client.torch.site.saving import SiteSaving  # noqa: PLC0415 - as in `_fit`

    return SiteSaving(group, checkpoints, module, asked.local, device, num_examples)


@contextmanager
def frozen(module: nn.Module, names: Collection[str]) -> Iterator[None]:
    """Exclude parameters from the training while the context is open."""
    named = module.named_parameters()
    still = [param for name, param in named if name in names and param.requires_grad]
    try:
        for param in still:
            param.requires_grad_(False)
        yield
    finally:
        for param in still:
            param.requires_grad_(True)
