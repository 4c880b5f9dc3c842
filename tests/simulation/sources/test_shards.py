"""Data sets are checked, split by class and stored without loss."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloom.protocol.errors import UsageError
from fedloom.simulation.sources import shards
from fedloom.simulation.sources.shards import Dataset


def _dataset(labels, num_classes=10):
    y = np.asarray(labels, dtype=np.int64)
    x = np.arange(len(y), dtype=np.float32).reshape(-1, 1, 1, 1)
    return Dataset(x=x, y=y, num_classes=num_classes)


def test_digits_are_the_set_that_scikit_learn_carries():
    """1,797 images of 8×8 in ten classes, scaled to [0, 1]."""
    digits = shards.digits()
    assert (len(digits), digits.image_shape, digits.num_classes) == (1797, (1, 8, 8), 10)
    assert (digits.x.min(), digits.x.max()) == (0.0, 1.0)
    assert set(digits.y) == set(range(10))


@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=60),
    fraction=st.floats(0.05, 0.95),
    seed=st.integers(0, 2**64),
)
def test_a_split_keeps_every_example_once_and_every_class_in_proportion(labels, fraction, seed):
    """Training and held-out examples are a partition, stratified and reproducible."""
    whole = _dataset(labels)
    train, held_out = shards.split(whole, held_out=fraction, seed=seed)
    ids = np.concatenate([train.x, held_out.x]).ravel()
    assert sorted(ids) == list(range(len(labels)))
    for label in range(5):
        wanted = round(fraction * labels.count(label))
        assert np.count_nonzero(held_out.y == label) == wanted
    again, _ = shards.split(whole, held_out=fraction, seed=seed)
    assert np.array_equal(again.x, train.x)


def test_other_seeds_split_otherwise():
    """The seed matters."""
    whole = _dataset([0] * 50)
    splits = [shards.split(whole, held_out=0.5, seed=seed)[1].x for seed in (0, 1)]
    assert not np.array_equal(*splits)


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, float("nan")])
def test_a_fraction_that_holds_out_nothing_or_all_is_refused(fraction):
    """It must lie strictly between."""
    with pytest.raises(UsageError, match="0 < held_out < 1"):
        shards.split(_dataset([0, 1]), held_out=fraction, seed=0)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.zeros((2, 1, 4, 4)), np.zeros(2, np.int64), "float64"),
        (np.zeros((2, 4, 4), np.float32), np.zeros(2, np.int64), r"\(2, 4, 4\)"),
        (np.zeros((2, 1, 4, 4), np.float32), np.zeros(3, np.int64), "2 labels"),
        (np.zeros((2, 1, 4, 4), np.float32), np.zeros(2, np.int32), "int32"),
        (np.zeros((2, 1, 4, 4), np.float32), np.array([0, 3]), "from 0 to 3"),
        (np.zeros((2, 1, 4, 4), np.float32), np.array([-1, 2]), "from -1 to 2"),
    ],
)
def test_arrays_that_are_no_labelled_images_are_refused(x, y, message):
    """Shapes, dtypes and labels are checked when the set is built."""
    with pytest.raises(UsageError, match=message):
        Dataset(x=x, y=y, num_classes=3)


def test_a_stored_shard_comes_back_with_the_same_bits(tmp_path):
    """An empty part is no exception."""
    train, held_out = _dataset([3, 1, 2]), _dataset([])
    shards.save(tmp_path / "shard.npz", train=train, held_out=held_out)
    for name, part in (("train", train), ("held_out", held_out)):
        back = shards.load(tmp_path / "shard.npz", name)
        assert np.array_equal(back.x, part.x)
        assert np.array_equal(back.y, part.y)
        assert back.num_classes == part.num_classes


def test_what_is_no_shard_is_refused_by_name(tmp_path):
    """A missing file, another kind of file, a missing part."""
    with pytest.raises(UsageError, match="no such file"):
        shards.load(tmp_path / "none.npz", "train")
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(UsageError, match=r"text\.npz to be a shard"):
        shards.load(tmp_path / "text.npz", "train")
    (tmp_path / "torn.npz").write_bytes(b"PK\x03\x04torn")
    with pytest.raises(UsageError, match=r"torn\.npz to be a shard"):
        shards.load(tmp_path / "torn.npz", "train")
    np.save(tmp_path / "array.npy", np.zeros(3))
    with pytest.raises(UsageError, match=r"array\.npy to be a shard"):
        shards.load(tmp_path / "array.npy", "train")
    shards.save(tmp_path / "shard.npz", train=_dataset([0]))
    with pytest.raises(UsageError, match="'test'"):
        shards.load(tmp_path / "shard.npz", "test")
