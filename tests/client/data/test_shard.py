"""Shards: one interface for examples in any storage."""

import numpy as np
import pytest

from fedloom.client.data import Arrays, Shard, as_shard
from fedloom.protocol.errors import UsageError

X, Y = np.arange(20).reshape(10, 2), np.arange(10)


def test_batches_have_every_example_once_in_the_seeds_order():
    """The last batch may be smaller; size 0 is one batch in order."""
    shard = Arrays(X, Y)
    batches = list(shard.batches(3, 4))
    assert [len(y) for _, y in batches] == [4, 4, 2]
    order = np.concatenate([y for _, y in batches])
    assert sorted(order) == list(range(10))
    assert all((x == X[y]).all() for x, y in batches)
    again = np.concatenate([y for _, y in shard.batches(3, 4)])
    np.testing.assert_array_equal(again, order)
    assert (np.concatenate([y for _, y in shard.batches(4, 4)]) != order).any()
    ((whole, _),) = shard.batches(3, 0)
    np.testing.assert_array_equal(whole, X)


def test_inputs_are_converted_as_they_are_taken():
    """(x − mean) · scale in the given dtype; the source arrays do not change."""
    pixels = np.array([[0, 255], [51, 102]], np.uint8)
    shard = Arrays(pixels, np.zeros(2), mean=51, scale=[1 / 51, 2 / 51])
    x, _ = shard.take(np.array([1, 0]))
    np.testing.assert_allclose(x, [[0, 2], [-1, 8]], rtol=1e-6)
    assert x.dtype == np.float32
    x[:] = 9
    assert pixels[0, 1] == 255


def test_a_split_is_complete_disjoint_and_repeatable():
    train, held = Arrays(X, Y, num_classes=10).split(0.3, seed=1)
    assert (len(train), len(held)) == (7, 3)
    assert sorted([*train.all()[1], *held.all()[1]]) == list(range(10))
    np.testing.assert_array_equal(Arrays(X, Y).split(0.3, seed=1)[1].all()[1], held.all()[1])
    assert train.num_classes == 10
    assert len(Arrays(X[:1], Y[:1]).split(0.9)[0]) == 1
    with pytest.raises(UsageError, match="fraction"):
        Arrays(X, Y).split(1.0)


def test_a_custom_shard_needs_only_a_length_and_take():
    """It is also a data set for PyTorch."""

    class Mine(Shard):
        def __len__(self):
            return 3

        def take(self, indices):
            return np.c_[indices], indices * 10

    assert [y.tolist() for _, y in Mine().in_order(2)] == [[0, 10], [20]]
    assert Mine()[2] == (2, 20)
    assert [int(y) for _, y in Mine()] == [0, 10, 20]
    assert as_shard(Mine())[-1][1] == 20


def test_data_sets_of_pytorch_are_shards_too():
    """And a shard gives a TorchClient the same batches as tensors do."""
    torch = pytest.importorskip("torch")
    from fedloom.client.torch import TorchClient
    from support.tasks import task

    x, y = torch.randn(12, 3), torch.randint(0, 2, (12,))
    dataset = torch.utils.data.TensorDataset(x, y)
    taken, targets = as_shard(dataset).take(np.array([5, 0]))
    np.testing.assert_array_equal(taken, x[[5, 0]].numpy())
    np.testing.assert_array_equal(targets, y[[5, 0]].numpy())
    trained = []
    for data in ((x, y), Arrays(x.numpy(), y.numpy())):
        model = torch.nn.Linear(3, 2)
        start = {"weight": np.ones((2, 3), np.float32), "bias": np.zeros(2, np.float32)}
        client = TorchClient(model, data, torch.nn.functional.cross_entropy)
        got, _, _ = client.train(start, task(epochs=2, batch_size=5))
        trained.append(np.array(got["weight"]))
    np.testing.assert_array_equal(*trained)


@pytest.mark.parametrize("data", [(X, Y[:3]), (np.float32(1), np.float32(2)), 3, {1, 2}])
def test_invalid_data_are_refused(data):
    """Unequal lengths, numbers, and objects without an index."""
    with pytest.raises(UsageError):
        as_shard(data)
