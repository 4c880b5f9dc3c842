"""[adapters] in simulations of modules with `lora`: what changes, and what is averaged."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from fedloom.client.torch import lora
from fedloom.protocol.errors import UsageError
from fedloom.simulation import models
from fedloom.simulation.api import simulate
from support.experiments import CLASSES, FEATURES, experiment

LAYERS = ("0", "2")


def adapted(rank=3):
    """An MLP with adapters that have values everywhere."""
    built = models.build("mlp", input_shape=(FEATURES,), num_classes=CLASSES, seed=1, hidden=(8,))
    torch.manual_seed(2)
    module = lora(built, rank=rank)
    for name in LAYERS:
        torch.nn.init.normal_(module.get_parameter(f"{name}.lora_b"), std=0.3)
    return module


def ended(adapters, *, goal=4, workers=1, rounds=1):
    """The last model of a simulation."""
    made = experiment(goal=goal, rounds=rounds, workers=workers, adapters=adapters)
    return simulate(replace(made, model=partial(adapted)), show=False).params


def products(params):
    """B A of each layer."""
    return {n: params[f"{n}.lora_b"].astype(np.float64) @ params[f"{n}.lora_a"] for n in LAYERS}


def test_frozen_factors_and_weights_keep_their_bits():
    """With freeze_a; without it A changes."""
    start = {name: value.numpy() for name, value in adapted().state_dict().items()}
    frozen, plain = ended({"aggregate": "freeze_a"}), ended({})
    for name in LAYERS:
        assert np.array_equal(frozen[f"{name}.lora_a"], start[f"{name}.lora_a"])
        assert not np.array_equal(frozen[f"{name}.lora_b"], start[f"{name}.lora_b"])
        assert np.array_equal(frozen[f"{name}.weight"], start[f"{name}.weight"])
        assert not np.array_equal(plain[f"{name}.lora_a"], start[f"{name}.lora_a"])


def test_the_product_of_one_client_is_its_own():
    """Its factors are others; their product is that of a run which averages factors."""
    mine, factors = ended({"aggregate": "product"}, goal=1), ended({}, goal=1)
    for name, product in products(factors).items():
        np.testing.assert_allclose(products(mine)[name], product, atol=1e-6)
        assert not np.allclose(mine[f"{name}.lora_a"], factors[f"{name}.lora_a"], atol=1e-3)


@pytest.mark.long
def test_workers_change_no_bit():
    """Updates of two processes, over two rounds."""
    one, two = (ended({"aggregate": "product"}, workers=n, rounds=2) for n in (1, 2))
    assert all(one[name].tobytes() == two[name].tobytes() for name in one)


def test_differences_are_refused_without_their_tensors():
    """`lora` has none; the message says how to make some."""
    with pytest.raises(UsageError, match="--adapter-rest"):
        ended({"aggregate": "stack"})


def test_a_module_of_another_scale_is_refused():
    """As by a device; the run's own scale changes no bit."""
    plain, same = ended({}), ended({"scale": 2.0})
    assert all(plain[name].tobytes() == same[name].tobytes() for name in plain)
    with pytest.raises(UsageError, match=r"scaled by 3, .*, got 2 in 0"):
        ended({"scale": 3.0})
