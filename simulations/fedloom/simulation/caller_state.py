"""What a simulation leaves as its caller had it: torch's threads, random states, and the heap.

Kernels run on one thread and seed global generators, and a user's code may seed them too.
"""

import gc
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch

FREEZE_AFTER_S = 2.0
"""Before that, the collection that goes before a freeze would not pay."""


@contextmanager
def preserved() -> Iterator[None]:
    """Restore threads, default dtype and the states of random, numpy and torch, also on errors."""
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    of_python, of_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - the global one
    of_torch = torch.get_rng_state()
    started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call] # torch leaves it untyped
    of_gpus = torch.cuda.get_rng_state_all() if started else []
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)
        random.setstate(of_python)
        np.random.set_state(of_numpy)  # noqa: NPY002
        torch.set_rng_state(of_torch)
        if of_gpus:
            torch.cuda.set_rng_state_all(of_gpus)


@contextmanager
def frozen_heap() -> Iterator[Callable[[], None]]:
    """Leave what exists out of the collections of garbage, in simulations that take a while.

    A full collection looks at 270,000 objects of torch and others, in 0.13 s. Objects that the
    caller has frozen itself stay as they are, and no others are frozen then.

    Yields:
        A function to call after each round.
    """
    begun, frozen = time.monotonic(), False
    leave = gc.get_freeze_count() > 0  # counted once: that takes a millisecond

    def freeze() -> None:
        nonlocal frozen
        if frozen or leave or time.monotonic() - begun < FREEZE_AFTER_S:
            return
        gc.collect()  # garbage must not stay for the whole simulation
        gc.freeze()
        frozen = True

    try:
        yield freeze
    finally:
        if frozen:
            gc.unfreeze()
