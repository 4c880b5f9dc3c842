"""The rank of this process within its site, from the environment that `torchrun` sets.

A site with several GPUs or machines is one client: rank 0 attends the server, the others compute.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from fedloom.protocol.errors import UsageError

NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """The place of a process within its site.

    Attributes:
        rank: from 0; 0 attends the server.
        size: number of processes.
        local_rank: from 0 on each machine: the number of its GPU.
    """

    rank: int
    size: int
    local_rank: int


def ranks(environment: Mapping[str, str] = os.environ) -> Ranks | None:
    """The place of this process within its site; None if it is the only process.

    Raises:
        UsageError: the variables are incomplete or not valid.
    """
    try:
        size = int(environment.get("WORLD_SIZE", "1"))
        rank = int(environment.get("RANK", "0"))
        local_rank = int(environment.get("LOCAL_RANK", rank))
    except ValueError as error:
        raise UsageError(
            f"Expected RANK, WORLD_SIZE and LOCAL_RANK as whole numbers: {error}."
        ) from None
    if size == 1 and "MASTER_ADDR" not in environment:
        return None
    if missing := [name for name in NAMES if name not in environment]:
        raise UsageError(
            f"Expected {', '.join(NAMES)} in the environment of a site's process, got no "
            f"{missing[0]}. Start it with torchrun, or unset WORLD_SIZE."
        )
    if not 0 <= rank < size:
        raise UsageError(f"Expected RANK from 0 to {size - 1}, got {rank}.")
    return Ranks(rank=rank, size=size, local_rank=local_rank) if size > 1 else None
