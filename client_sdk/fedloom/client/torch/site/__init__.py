"""A site with several GPUs or machines as one client, started by `torchrun`.

Rank 0 attends the server like any client and passes each task on to the other ranks, which have
neither the server's address nor a state directory. All ranks train together by
DistributedDataParallel, and rank 0 returns the result.

Source: Li et al. 2020, PyTorch Distributed, https://arxiv.org/abs/2006.15704.

Invariant: a task's result equals that of one process with the same batches, up to rounding.
"""

from fedloom.client.torch.site.group import SiteBrokenError
from fedloom.client.torch.site.join import follow, join

__all__ = ["SiteBrokenError", "follow", "join"]
