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
from fedloom.client.torch.schedules import Scheduled
from fedloom.client.torch.stopping import TorchStopRule
from fedloom.client.torch.training_state import Saving, Stateful, can_save
from fedloom.client.training.checkpoints import Checkpoints
from fedloom.client.training.client_rule import RuleContext
from fedloom.client.training.length import Report, silent
from fedloom.protocol.errors import UsageError
from fedloom.strategies import ClientRule, RoundSettings

_HEAD = 1 << 62
"""Of the seed of the head's batches, which is another than the body's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a task asks of a training.

    Attributes:
        settings: its length, batch size and learning rate.
        rule: over gradients.
        local: what the rule has here, and what stays here; told what was trained.
        seed: gives the order of the examples.
        should_stop: asked before each step.
        most_steps: that there is time for, in place of a clock; 0 to look at the clock.
        report: told of the progress after each step.
        checkpoints: where to keep the training, and to go on from; None for nowhere.
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
    """Train a module in place, from the values that it holds.

    Args:
        module: with what the server sent, and the client's own tensors in their places.
        data: at least one example.
        loss: mean loss of a batch.
        optimizer: made anew here.
        asked: by the task.
        anchored: parameters that the rule is for; all that are sent by default.
        group: the ranks that train it together.
        how: the device trains.

    Returns:
        Of the training by the task's settings; passes over the head alone are not counted.
    """
    personal = asked.local.personal
    # Ranks that drew alike, as for dropout, would drop the same units of all their shares.
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
                    f"{personal.name!r}, whose own model is trained so, got {how}."
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
        alone = replace(asked, settings=settings, seed=asked.seed ^ _HEAD)
        with frozen(module, names - head):
            clip = loop.clipping(module.parameters(), clip_norm)
            if saving is None or not saving.is_past(0):
                _fit(
                    module, data, loss, optimizer, alone, clip,
                    group=group, how=how, saving=saving,
                )  # fmt: skip
        if group.says(asked.should_stop()):  # what is saved is of the head, which may not be done
            return loop.MetricSums()
        with frozen(module, head):
            return _fit(
                module, data, loss, optimizer, asked, correct,
                group=group, how=how, saving=saving, stage=1,
            )  # fmt: skip


def _fit(  # noqa: PLR0917 - what a fit is of
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
    stopping = TorchStopRule(settings, len(data), asked.should_stop, asked.most_steps, asked.report)
    stepper = optimizer(trainable, lr=settings.learning_rate)
    precision = Precision(how.precision, loop.device_of(module).type)
    schedule = None
    if how.schedule is not None:
        length = {"epochs": settings.epochs, "steps": settings.steps}
        wanted = batches.count(len(data), batch_size=settings.batch_size, **length)
        schedule = Scheduled(stepper, how.schedule, wanted)
    after = None if schedule is None else schedule.step
    totals, done = loop.MetricSums(), 0
    if saving is not None and can_save(stepper):
        parts: dict[str, Stateful] = {"optimizer": stepper, "totals": totals, "stopping": stopping}
        more = {"precision": precision, "schedule": schedule, "mine": mine}
        parts |= {name: part for name, part in more.items() if part is not None}
        done = saving.begin(stage, stopping.epoch, parts)
    else:
        saving = None

    def over() -> None:
        if saving is not None and group.says(asked.should_stop()):
            saving.save()  # whoever asked may want the rest later

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
        batches.training(
            data,
            epochs=settings.epochs,
            steps=settings.steps,
            batch_size=settings.batch_size,
            seed=asked.seed,
            skip=done,
        ),
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
    """Where the training is kept between two steps, if rank 0 has a place for it."""
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
    """Take parameters out of the training, for a while."""
    named = module.named_parameters()
    still = [param for name, param in named if name in names and param.requires_grad]
    try:
        for param in still:
            param.requires_grad_(False)
        yield
    finally:
        for param in still:
            param.requires_grad_(True)
