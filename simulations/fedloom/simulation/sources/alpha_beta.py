"""Synthetic(α, β): devices whose labelling models and inputs differ, by two numbers.

Source: Li et al. 2020, "Federated optimization in heterogeneous networks",
https://arxiv.org/abs/1812.06127, section 5.1. On device k with u_k ~ N(0, α) and B_k ~ N(0, β)

    y = argmax(W_k x + b_k)     elements of W_k (10 × 60) and b_k (10) ~ N(u_k, 1)
    x ~ N(v_k, Σ)               elements of v_k ~ N(B_k, 1),   Σ diagonal, Σ_jj = j^-1.2

As u_k is one number, it adds the same to all scores: α changes no label.

IID: one W and b ~ N(0, 1) for all devices, v = 0. The paper gives no sizes ("a power law"); these
are the authors' code's, 50 + ⌊exp(N(4, 2²))⌋. That code takes α and β as standard deviations, which
differs at (0.5, 0.5), and keeps a tenth for the test instead of a fifth: `deviations`, `test`.
"""

from math import isfinite, sqrt

import numpy as np

from fedloom.protocol.errors import UsageError
from fedloom.simulation.data.population import Examples, numbered
from fedloom.simulation.seeds import stream
from fedloom.simulation.sources.base import LoadedData, check_test

INPUTS, CLASSES = 60, 10


def alpha_beta(
    *,
    seed: int,
    alpha: float = 0.0,
    beta: float = 0.0,
    iid: bool = False,
    devices: int = 30,
    test: float = 0.2,
    deviations: bool = False,
) -> LoadedData:
    """Synthetic(α, β), with the device of every example.

    Args:
        seed: of the experiment.
        alpha: variance of the mean of a device's model, at least 0.
        beta: variance of the mean of a device's inputs, at least 0.
        iid: one model and one distribution for all; then alpha and beta must be 0.
        devices: number of clients.
        test: fraction of each device's examples in the central test examples.
        deviations: alpha and beta are standard deviations, as in the authors' code.

    Raises:
        UsageError: a setting is out of range.
    """
    for name, value in (("alpha", alpha), ("beta", beta)):
        if not (isfinite(value) and value >= 0):
            raise UsageError(f"Expected a finite {name} >= 0, got {value}.")
    if iid and (alpha or beta):
        raise UsageError(f"iid = true excludes alpha = {alpha} and beta = {beta}. Omit them.")
    if type(devices) is not int or devices < 1:
        raise UsageError(f"Expected devices as a whole number >= 1, got {devices!r}.")
    check_test(test)
    spreads = (alpha, beta) if deviations else (sqrt(alpha), sqrt(beta))
    sizes = 50 + stream(seed, "alpha-beta/sizes").lognormal(4, 2, devices).astype(np.int64)
    parts = [_device(seed, k, int(size), spreads, iid=iid) for k, size in enumerate(sizes)]
    kept = [round((1 - test) * size) for size in sizes]  # in an order that says nothing
    names = np.array(numbered(devices))
    return LoadedData(
        train=_joined([(x[:n], y[:n]) for (x, y), n in zip(parts, kept, strict=True)]),
        test=_joined([(x[n:], y[n:]) for (x, y), n in zip(parts, kept, strict=True)])
        if test
        else None,
        num_classes=CLASSES,
        owners=np.repeat(names, kept),
    )


Part = tuple[np.ndarray, np.ndarray]


def _device(seed: int, k: int, size: int, spreads: tuple[float, float], *, iid: bool) -> Part:
    """A device's inputs and labels; an IID device's model is device 0's without a mean."""
    model = stream(seed, "alpha-beta/model", 0 if iid else k)
    inputs = stream(seed, "alpha-beta/inputs", k)
    u = 0.0 if iid else spreads[0] * model.standard_normal()
    weights = u + model.standard_normal((INPUTS, CLASSES))
    bias = u + model.standard_normal(CLASSES)
    centre = inputs.standard_normal(INPUTS) + spreads[1] * inputs.standard_normal()
    deviation = np.arange(1, INPUTS + 1) ** -0.6
    x = (0 if iid else centre) + deviation * inputs.standard_normal((size, INPUTS))
    return x.astype(np.float32), (x @ weights + bias).argmax(axis=1)


def _joined(parts: list[Part]) -> Examples:
    return Examples(
        x=np.concatenate([x for x, _ in parts]), y=np.concatenate([y for _, y in parts])
    )
