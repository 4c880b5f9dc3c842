"""Which of a site's processes this one is, from what `torchrun` sets in the environment.

A site with several GPUs or machines is one client: rank 0 attends the server, the others compute.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from fedloom.protocol.errors import UsageError

NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """A process among a site's.

    Attributes:
        rank: from 0; 0 attends the server.
        size: how many there are.
        local_rank: from 0 on each machine: which of its GPUs.
    """

    rank: int
    size: int
    local_rank: int


def ranks(environment: Mapping[str, str] = os.environ) -> Ranks | None:
    """This process among its site's; None where it is the only one.

    Raises:
        UsageError: the environment says half of it, or what cannot be.
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
            f"{missing[0]}. Start it by torchrun, or unset WORLD_SIZE."
        )
    if not 0 <= rank < size:
        raise UsageError(f"Expected RANK from 0 to {size - 1}, got {rank}.")
    return Ranks(rank=rank, size=size, local_rank=local_rank) if size > 1 else None
