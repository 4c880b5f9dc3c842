"""Local training by DistributedDataParallel: each rank trains on its share of every batch.

The batches are those of one process: a DistributedSampler distributes the examples in the order of
the task's seed. Unlike torch's sampler it repeats and drops no example, so the shares of an epoch's
last batch may differ in size or be empty. Gradients are weighted by the sizes.

Source: Li et al. 2020, PyTorch Distributed, https://arxiv.org/abs/2006.15704, section 3.2.

Invariant: the gradient of every step is that of the mean loss over the whole batch.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from fedloom.client.torch import batches, loop
from fedloom.client.torch.augment import Transformed
from fedloom.client.torch.group import Group
from fedloom.client.torch.precision import FULL, Precision
from fedloom.client.torch.site.group import SiteGroup
from fedloom.client.torch.site.norm import Counted, norms, over_ranks
from fedloom.client.torch.stopping import TorchStopRule
from fedloom.client.training.length import num_steps
from fedloom.protocol.errors import UsageError
from fedloom.strategies import RoundSettings


@dataclass(frozen=True, slots=True)
class Share:
    """A rank's part of a batch.

    Attributes:
        indices: int64; one placeholder if the part is empty.
        size: number of examples, 0 with a placeholder.
        whole: number of examples in the whole batch.
    """

    indices: Tensor
    size: int
    whole: int


class RankShard(DistributedSampler[int]):
    """This rank's examples, epoch by epoch, in the order of the task's seed.

    Args:
        num_examples: of the site.
        seed: of the task.
        group: whose ranks share them.
    """

    def __init__(self, num_examples: int, seed: int, group: Group) -> None:
        super().__init__(range(num_examples), group.size, group.rank, shuffle=True, seed=seed)  # type: ignore[arg-type] # only its length is used
        self._orders = batches.orders(num_examples, seed)

    def order(self) -> Tensor:
        """The order of the next epoch, for all ranks."""
        return next(self._orders)

    def __iter__(self) -> Iterator[int]:
        """This rank's examples of the next epoch, without repetition or omission."""
        return iter(self.order()[self.rank :: self.num_replicas].tolist())


def shares(
    num_examples: int, settings: RoundSettings, seed: int, group: Group, skip: int = 0
) -> Iterator[Share]:
    """This rank's share of every batch of a training, in order, after the first `skip`.

    Other arguments as in `RankShard`.
    """
    size = settings.batch_size or num_examples
    count = num_steps(num_examples, settings)
    shard = RankShard(num_examples, seed, group)
    while True:
        for whole in torch.split(shard.order(), size):
            if not count:
                return
            count -= 1
            if skip:
                skip -= 1
                continue
            mine = whole[group.rank :: group.size]
            yield Share(mine if len(mine) else whole[:1], len(mine), len(whole))


def fit(  # noqa: PLR0917 - as `loop.fit`
    module: nn.Module,
    data: batches.ExampleSource,
    loss: loop.Loss,
    optimizer: loop.Stepper,
    settings: RoundSettings,
    seed: int,
    *,
    correct: loop.Correction,
    stopping: TorchStopRule,
    group: Group,
    precision: Precision = FULL,
    after: loop.Correction | None = None,
    totals: loop.MetricSums | None = None,
    skip: int = 0,
    stepped: Callable[[], None] | None = None,
    over: Callable[[], None] | None = None,
) -> loop.MetricSums:
    """As `loop.fit`, on all ranks together.

    The data are the site's; the seed determines the order of the examples, of which the first
    `skip` batches were trained on before. Only rank 0's `stopping` is used. `totals` are sums of
    this rank's earlier shares; `over` is called after the last step, before the ranks' are merged.

    Raises:
        UsageError: a trained tensor has no part in the loss.
        Exception: the author's code failed on this rank; all ranks end the task.
    """
    assert isinstance(group, SiteGroup)
    totals, counted = loop.MetricSums() if totals is None else totals, Counted()
    looked = False
    device = loop.device_of(module)
    trained = [param for param in module.parameters() if param.requires_grad]
    _check_shared(data, group)
    module.train()
    with group.speaking():
        parallel = _parallel(module, device)
    with over_ranks(module, counted):
        for share in shares(len(data), settings, seed, group, skip):
            failure, made = None, None
            counted.here = share.size > 0
            try:
                x, y = data.take(share.indices)
                optimizer.zero_grad()
                with precision.forward():
                    made = loop.forward(parallel, x, y, loss, device)
            except Exception as error:
                if norms(module) and not isinstance(error, UsageError):
                    raise  # the other ranks may wait within their forward pass
                failure = error
            summed = (_loss_sum(made, share),) if settings.patience else ()
            agreed = group.agree(failure, stop=stopping.should_stop(), numbers=summed)
            if agreed.stop:
                break
            assert made is not None
            output, target, value = made
            with group.speaking():
                precision.backward(value * (share.size * group.size / share.whole))
            if not looked:  # once on every rank, also on one with empty shares
                _check_all_have_gradients(module, group)
                looked = True
            precision.step(optimizer, trained, correct)
            if after is not None:
                after()
            stopping.watch(
                value.new_tensor(agreed.sums[0] / share.whole) if summed else value, share.whole
            )
            if share.size:
                totals.add(value, output, target)
            if stepped is not None:
                stepped()
    optimizer.zero_grad()
    if over is not None:
        over()
    totals.merge(group)
    return totals


def _parallel(module: nn.Module, device: torch.device) -> DistributedDataParallel:
    """Wrap a module to exchange gradients, but not buffers, which are equal already.

    torch 2.12 renamed the option.
    """
    renamed = "forward_sync_buffers" in signature(DistributedDataParallel).parameters
    without: dict[str, Any] = {"forward_sync_buffers" if renamed else "broadcast_buffers": False}
    return DistributedDataParallel(module, [device] if device.type == "cuda" else None, **without)


def _loss_sum(made: tuple[object, Tensor, Tensor] | None, share: Share) -> float:
    return 0.0 if made is None or not share.size else float(made[2].detach()) * share.size


def _check_shared(data: batches.ExampleSource, group: SiteGroup) -> None:
    """Check that ranks can share the examples, and have as many; growing data may differ."""
    if isinstance(data, Transformed):
        raise UsageError(
            f"Transforms do not support a site of {group.size} processes. Transform in the data "
            "set, or start one process."
        )
    if not data.is_drawn_here:
        raise UsageError(
            "Expected the data set, or a loader with shuffle=True alone, on a site of "
            f"{group.size} processes, which share its examples; got a loader with a sampler, "
            "drop_last or workers of its own."
        )
    num_examples = len(data)
    total, squares = group.sums([num_examples, num_examples**2])
    if total**2 != group.size * squares:  # the same on every rank
        group.agree(
            UsageError(
                f"Expected the same number of examples on every rank, got {num_examples:,} on rank "
                f"{group.rank} and {total:,.0f} on all {group.size} ranks together."
            )
        )


def _check_all_have_gradients(module: nn.Module, group: SiteGroup) -> None:
    """Check that all trained tensors have gradients: their exchange waits for each of them."""
    lacking = [n for n, p in module.named_parameters() if p.requires_grad and p.grad is None]
    failure = None
    if lacking:
        failure = UsageError(
            f"On a site every trained tensor needs a gradient, but {lacking[0]!r} has no part in "
            "the loss. Freeze it by requires_grad_(False) or train.only."
        )
    group.agree(failure)
