"""Named random streams: one seed for an experiment, an independent generator for each purpose.

Philox is counter-based (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"). A
stream depends only on its key, not on other streams or their order.
"""

import hashlib

import numpy as np


def stream(seed: int, purpose: str, index: int = 0) -> np.random.Generator:
    """Open the stream of one purpose.

    Args:
        seed: the experiment's seed.
        purpose: of the numbers, such as `partition`.
        index: of several streams for this purpose, such as an attempt's number.

    Returns:
        A generator whose numbers depend only on the three arguments.
    """
    name = f"{seed}/{purpose}/{index}".encode()
    key = int.from_bytes(hashlib.sha256(name).digest()[:16], "little")
    return np.random.Generator(np.random.Philox(key=key))
