"""Models of low-rank adapters, and trained factors of clients; the oracle is numpy in float64."""

import numpy as np

from fedloom.strategies import DELTA, Slice
from fedloom.strategies.exact.partial import Full, TensorSpec
from fedloom.strategies.robust.updates import ArrayUpdate, ArrayUpdates

LAYER = "base_model.model.h.0.q_proj"
A, B = f"{LAYER}.lora_A.weight", f"{LAYER}.lora_B.weight"
REST = f"{LAYER}.lora_rest.weight"
OTHER = "base_model.model.score.bias"


def model_of(out=12, into=20, rank=6, *, rest=False, seed=0):
    """A model of one adapted layer and another tensor, with values everywhere."""
    rng = np.random.default_rng(seed)
    shapes = {A: (rank, into), B: (out, rank), **({REST: (out, into)} if rest else {}), OTHER: (3,)}
    return {n: rng.normal(size=s).astype(np.float32) for n, s in shapes.items()}


def specs_of(model):
    """The specs of a model's tensors."""
    return {n: TensorSpec(shape=a.shape, dtype=a.dtype) for n, a in model.items()}


def trained(model, rank, seed):
    """A client's new values of the leading ranks, and of the other tensor."""
    rng = np.random.default_rng([7, seed])
    new = {n: np.array(model[n]) for n in (A, B, OTHER)}
    new[A][:rank] += rng.normal(size=new[A][:rank].shape).astype(np.float32)
    new[B][:, :rank] += rng.normal(size=new[B][:, :rank].shape).astype(np.float32)
    new[OTHER] += rng.normal(size=3).astype(np.float32)
    return new


def update_of(model, new, rank, weight):
    """The update of a client that trained the leading ranks."""
    whole = model[A].shape[0]
    boxes = {
        A: Full() if rank == whole else Slice(((0, rank), (0, model[A].shape[1]))),
        B: Full() if rank == whole else Slice(((0, model[B].shape[0]), (0, rank))),
        OTHER: Full(),
    }
    steps = {name: new[name] - model[name] for name in boxes}
    steps[A], steps[B] = steps[A][:rank], steps[B][:, :rank]
    parts = {(DELTA, n): (box, steps[n].reshape(-1)) for n, box in boxes.items()}
    return ArrayUpdate(parts, weight)


def updates_of(model, ranks, weights):
    """The updates of a round, and the clients' factors in float64 as the server gets them."""
    sent, factors = {}, []
    for number, (rank, weight) in enumerate(zip(ranks, weights, strict=True)):
        new = trained(model, rank, number)
        sent[f"client-{number:02}"] = update_of(model, new, rank, weight)
        factors.append(
            tuple(
                model[n].astype(np.float64) + (new[n] - model[n]).astype(np.float64) for n in (B, A)
            )
        )
    specs = {(DELTA, n): spec for n, spec in specs_of(model).items() if n != REST}
    return ArrayUpdates(specs, sent), factors


def mean_product(factors, weights):
    """Σ w B A / Σ w in float64, one product after another."""
    total = sum(w * (b @ a) for w, (b, a) in zip(weights, factors, strict=True))
    return total / sum(weights)


def best_error(matrix, rank):
    """The Frobenius norm that the best approximation of this rank leaves (Eckart and Young)."""
    values = np.linalg.svd(matrix, compute_uv=False)
    return float(np.sqrt(np.square(values[rank:]).sum()))
