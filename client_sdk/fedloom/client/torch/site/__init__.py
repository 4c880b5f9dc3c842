"""A site with several GPUs or machines as one client, started by `torchrun`.

Rank 0 attends the server as any client does. Each task that it gets it passes on to the other
ranks, who have neither the server's address nor a state directory; all train together by
DistributedDataParallel, and rank 0 returns what came of it.

Source: Li et al. 2020, PyTorch Distributed, https://arxiv.org/abs/2006.15704.

Invariant: a task's result is that of one process with the same batches, up to rounding.
"""

from fedloom.client.torch.site.group import SiteBrokenError
from fedloom.client.torch.site.join import follow, join

__all__ = ["SiteBrokenError", "follow", "join"]
