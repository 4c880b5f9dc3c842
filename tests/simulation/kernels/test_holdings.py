"""Clients share the population's arrays; one client's examples are gathered at a time."""

import numpy as np
import torch

from fedloom.simulation.kernels.holdings import Holdings
from support import kernels


def test_a_populations_arrays_are_not_copied():
    people = kernels.population()
    x, y = Holdings(people, kernels.CPU)._train
    assert x.data_ptr() == people.examples.x.ctypes.data
    assert y.data_ptr() == people.examples.y.ctypes.data


def test_a_client_gets_its_own_examples_in_the_requested_order():
    """As a copy."""
    people = kernels.population()
    holdings, shard = Holdings(people, kernels.CPU), people.shards[1]
    order = torch.tensor([3, 0, 3])
    for chosen, found in ((shard, holdings.train(1)), (shard[[3, 0, 3]], holdings.train(1, order))):
        assert np.array_equal(found[0].numpy(), people.examples.x[chosen])
        assert np.array_equal(found[1].numpy(), people.examples.y[chosen])
        found[0].zero_()
    assert people.examples.x[shard].any()


def test_without_held_out_examples_nothing_is_evaluated():
    holdings = Holdings(kernels.population(), kernels.CPU)
    assert holdings.held_out(0) is None
    assert len(holdings.held_out(3)) == 9
    assert Holdings(kernels.population(held_out=False), kernels.CPU).held_out(3) is None
    assert len(holdings.test(5, 12)) == 7
    assert holdings.test(30, 40) is None
