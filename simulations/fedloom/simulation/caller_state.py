"""What a simulation leaves as its caller had it: torch's threads, random states, and the heap.

Kernels run on one thread and seed global generators, and a user's code may seed them too.
"""

import gc
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


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
def frozen_heap() -> Iterator[None]:
    """Leave all objects that exist out of the collections of garbage, here and in forked workers.

    A full collection looks at 270,000 objects of torch and others: 0.13 s, and each forked worker
    copies the pages that it marks. Does nothing if the caller has frozen objects itself.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.collect()  # garbage must not stay for the whole simulation
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
