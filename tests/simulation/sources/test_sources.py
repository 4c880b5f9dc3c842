"""Sources give the requested population, or a message with advice."""

import io
import math
import struct
import sys
import tarfile
import types
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloom.protocol.errors import UsageError
from fedloom.simulation import sources
from fedloom.simulation.sources import base, text

DATA = Path(__file__).parents[4] / "shared" / "data"
needs_mnist = pytest.mark.skipif(
    not (DATA / "mnist").is_dir(), reason="needs the MNIST files beside the repository"
)
needs_shakespeare = pytest.mark.skipif(
    not (DATA / "shakespeare").is_dir(), reason="needs the plays beside the repository"
)


def _load(source, **settings):
    return sources.load(source=source, seed=1, **settings)


def _idx(values):
    values = np.asarray(values, np.uint8)
    return struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + bytes(
        values.ravel()
    )


def _write_idx(folder, train="train", test="t10k", *, labels=(0, 1, 2, 1)):
    folder.mkdir(exist_ok=True)
    images = np.arange(len(labels) * 6).reshape(-1, 2, 3)
    for part in (train, test):
        (folder / f"{part}-images-idx3-ubyte").write_bytes(_idx(images))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(_idx(labels))
    return images


def _same(one, other):
    assert one.names == other.names
    assert all(map(np.array_equal, one.shards, other.shards))
    assert np.array_equal(one.examples.x, other.examples.x)


# by name


def test_the_same_seed_gives_the_same_population():
    settings = {"clients": 10, "partition": {"name": "dirichlet", "alpha": 0.5}, "held_out": 0.2}
    one, again = _load("digits", **settings), _load("digits", **settings)
    _same(one, again)
    assert all(map(np.array_equal, one.held_out_shards, again.held_out_shards))
    other = sources.load(source="digits", seed=2, **settings)
    assert not np.array_equal(one.examples.y, other.examples.y)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"source": "digit"}, "got 'digit'. Did you mean 'digits'"),
        ({"source": 3}, r"Expected data as \(inputs, targets\), a torch data set.*got int"),
        ({"source": "digits", "folder": "x"}, "'data.folder' of the source 'digits'"),
        ({"source": "mnist", "tets": 0.1}, "'data.tets' of the source 'mnist'"),
        ({"source": "csv", "file": "x"}, "Missing setting data.target of the source 'csv'"),
        ({"source": "digits", "test": "some"}, 'as a number, got "some"'),
        ({"source": "digits", "test": 1.0}, "0 <= test < 1"),
        ({"source": "digits", "clients": 10, "held_out": 1.0}, "0 < held_out < 1"),
        ({"source": "digits"}, "Set clients"),
        ({"source": "digits", "clients": 2, "partition": {"nam": "iid"}}, "Did you mean 'name'"),
        ({"source": "synthetic", "examples": 5}, "an example for each"),
        ({"source": "synthetic", "shape": []}, "a shape of sizes >= 1"),
        ({"source": "synthetic", "shape": [2.5]}, "as a list of whole numbers, got"),
        ({"source": "idx", "folder": "/nowhere"}, "does not exist"),
        ({"source": "emnist", "folder": "/nowhere"}, "Unpack NIST's gzip.zip"),
        ({"source": "text", "file": "/nowhere"}, "The text /nowhere cannot be read"),
        ({"source": "csv", "file": "/nowhere", "target": "y"}, "Expected a CSV file at /nowhere"),
        ({"source": "arrays", "file": "/nowhere"}, "/nowhere cannot be read as a .npz file"),
    ],
)
def test_invalid_sources_are_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        sources.load(seed=1, **settings)


@pytest.mark.parametrize("source", ["mnist", "fashion-mnist", "cifar10", "cifar100", "shakespeare"])
def test_a_missing_known_set_is_an_error_with_advice(source, tmp_path, monkeypatch):
    """The message has the folder and two ways to get the files."""
    monkeypatch.setenv("FEDLOOM_DATA", str(tmp_path))
    with pytest.raises(UsageError, match=f"{tmp_path}/{source}.*Set folder.*download = true"):
        _load(source, clients=2)
    with pytest.raises(UsageError, match="is not in elsewhere: no"):
        _load(source, clients=2, folder="elsewhere")


def test_digits_keep_a_fifth_for_the_test():
    population = _load("digits", clients=20, held_out=0.25)
    assert (len(population.examples), len(population.test)) == (1438, 359)
    assert population.num_classes == 10
    assert population.examples.x.dtype == np.float32
    for shard, held in zip(population.shards, population.held_out_shards, strict=True):
        assert not set(shard.tolist()) & set(held.tolist())
        assert len(held) == round(0.25 * (len(shard) + len(held)))
    assert _load("digits", clients=20, test=0).test is None


@given(size=st.integers(1, 30), fraction=st.floats(0.01, 0.99), seed=st.integers(0, 99))
def test_a_client_keeps_something_to_train_on(size, fraction, seed):
    shard = np.arange(100, 100 + size)
    train, held = base.hold_out(shard, fraction, seed, client=3)
    assert len(train) >= 1
    assert sorted([*train, *held]) == shard.tolist()


# images


def test_folders_in_the_layout_of_mnist_are_read(tmp_path):
    images = _write_idx(tmp_path)
    for source in ("idx", "mnist", "fashion-mnist"):
        population = _load(source, folder=str(tmp_path), clients=2)
        assert np.allclose(population.examples.x[:, 0], images / 255)
        assert population.test.y.tolist() == [0, 1, 2, 1]
        assert population.num_classes == 3


def test_emnist_is_transposed_and_its_letters_become_zero_based(tmp_path):
    images = _write_idx(
        tmp_path, "emnist-letters-train", "emnist-letters-test", labels=(1, 2, 26, 3)
    )
    population = _load("emnist", folder=str(tmp_path), variant="letters", clients=2)
    assert population.examples.x.shape == (4, 1, 3, 2)
    assert np.allclose(population.examples.x[:, 0], images.swapaxes(1, 2) / 255)
    assert population.examples.y.tolist() == [0, 1, 25, 2]
    assert population.num_classes == 26
    with pytest.raises(UsageError, match="emnist-balanced-train-images"):
        _load("emnist", folder=str(tmp_path), clients=2)


def _records(count, label_bytes):
    rows = np.arange(count * (label_bytes + 3072)).reshape(count, -1) * 31 % 256
    rows[:, :label_bytes] = np.arange(count)[:, None] % 10
    return rows.astype(np.uint8)


def test_cifar_is_read_from_its_files_or_its_archive(tmp_path):
    """Channel by channel; CIFAR-100 has two labels, of which the second counts."""
    rows = _records(3, 1)
    names = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
    archive = tmp_path / "cifar-10-binary.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name in names:
            member = tarfile.TarInfo(f"../cifar-10-batches-bin/{name}")
            member.size = rows.size
            tar.addfile(member, io.BytesIO(rows.tobytes()))
    for _ in ("from the archive", "from what was unpacked"):
        population = _load("cifar10", folder=str(tmp_path), clients=5)
        assert (len(population.examples), len(population.test)) == (15, 3)
        assert np.allclose(population.examples.x[:3].reshape(3, -1), rows[:, 1:] / 255)
        assert population.test.y.tolist() == [0, 1, 2]
        archive.unlink(missing_ok=True)
    rows = _records(4, 2)
    rows[:, 1] = [99, 0, 5, 7]
    folder = tmp_path / "cifar-100-binary"
    folder.mkdir()
    for name in ("train.bin", "test.bin"):
        (folder / name).write_bytes(rows.tobytes())
    population = _load("cifar100", folder=str(tmp_path), clients=2)
    assert population.examples.y.tolist() == [99, 0, 5, 7]
    assert population.num_classes == 100
    (folder / "train.bin").write_bytes(b"short")
    with pytest.raises(UsageError, match="records of 3074 bytes, got 5"):
        _load("cifar100", folder=str(tmp_path), clients=2)


def test_a_damaged_archive_is_refused(tmp_path):
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(b"no archive")
    with pytest.raises(UsageError, match="cannot be unpacked"):
        _load("cifar10", folder=str(tmp_path), clients=5)


@pytest.mark.long
@needs_mnist
def test_mnist_over_a_thousand_clients_shares_its_examples():
    """60,000 images are in memory once, for any number of clients."""
    population = _load("mnist", folder=str(DATA / "mnist"), clients=1000)
    assert population.examples.x.shape == (60_000, 1, 28, 28)
    assert len(population.test) == 10_000
    assert set(population.sizes.tolist()) == {60}


# text

PLAY = """ANNA:
Good day, dear Bob.

BOB:
Good day. How are
you today, dear Anna?

A VERY SHORT ROLE:
Hm.

ANNA:
I am well, and you are too, I hope.
"""


def test_a_window_is_followed_by_its_next_characters(tmp_path):
    """Windows of a role do not overlap, and the last of them are for the test."""
    (tmp_path / "play.txt").write_text(PLAY)
    population = _load("text", file=str(tmp_path / "play.txt"), length=5, test=0.2)
    assert list(population.names) == ["ANNA", "BOB"]
    said = {
        "ANNA": "Good day, dear Bob.\nI am well, and you are too, I hope.\n",
        "BOB": "Good day. How are\nyou today, dear Anna?\n",
    }
    for name, shard in zip(population.names, population.shards, strict=True):
        rows = population.examples.x[shard]
        read = "".join(text.VOCABULARY[token] for token in rows.ravel())
        assert said[name].startswith(read)
        targets = "".join(text.VOCABULARY[token] for token in population.examples.y[shard].ravel())
        assert targets == said[name][1 : len(read) + 1]
        assert len(rows) == (len(said[name]) - 1) // 5 - np.ceil((len(said[name]) - 1) // 5 * 0.2)
    assert len(population.test) == 3 + 2
    assert population.num_classes == 65


def test_characters_outside_the_vocabulary_are_refused(tmp_path):
    path = tmp_path / "play.txt"
    path.write_text("ANNA:\n" + "é7" * 100, encoding="utf-8")
    with pytest.raises(UsageError, match=r"vocabulary of 65, got \['7', 'é'\]"):
        _load("text", file=str(path))
    population = _load("text", file=str(path), vocabulary="é7\n")
    assert population.examples.x[0, :4].tolist() == [0, 1, 0, 1]
    with pytest.raises(UsageError, match="has 9 windows of 80 characters"):
        _load("text", file=str(path), vocabulary="é7\n", min_windows=9)
    with pytest.raises(UsageError, match="length and min_windows >= 1"):
        _load("text", file=str(path), length=0)


@needs_shakespeare
def test_shakespeare_has_its_speaking_roles():
    """232 of 299 have enough text; each is a client of this name."""
    population = _load("shakespeare", folder=str(DATA / "shakespeare"))
    assert len(population) == 232
    assert "KING-RICHARD-II" in population.names
    assert population.examples.x.shape[1:] == (80,)
    assert population.examples.x.dtype == population.examples.y.dtype == np.int64
    assert np.array_equal(population.examples.x[:, 1:], population.examples.y[:, :-1])
    assert set(text.VOCABULARY) == set((DATA / "shakespeare/tinyshakespeare.txt").read_text())
    some = _load("shakespeare", folder=str(DATA / "shakespeare"), clients=50)
    assert len(some) == 50


# synthetic


def test_synthetic_classes_can_be_separated():
    population = _load("synthetic", clients=5, shape=[4, 5], separation=6, classes=3, examples=600)
    x, y = population.examples.x, population.examples.y
    assert x.shape == (600, 4, 5)
    assert np.bincount(y).tolist() == [200] * 3
    means = np.stack([x[y == label].mean(axis=0) for label in range(3)])
    distances = ((population.test.x[:, None] - means) ** 2).sum(axis=(2, 3))
    assert np.mean(distances.argmin(axis=1) == population.test.y) > 0.98
    assert len(population.test) == 120


# tables

TABLE = """age;site;height;ill
30;north;1.70;yes
40;south;1.80;no
50;north;1.65;yes
60;east;1.75;no
"""


def _table(tmp_path, text=TABLE, **settings):
    (tmp_path / "table.csv").write_text(text)
    given = {"target": "ill", "client": "site", "separator": ";", "test": 0, **settings}
    return _load("csv", file=str(tmp_path / "table.csv"), **given)


def test_a_table_has_inputs_targets_and_clients(tmp_path):
    population = _table(tmp_path)
    assert list(population.names) == ["east", "north", "south"]
    assert population.examples.x.tolist() == [
        pytest.approx(row) for row in ([30, 1.7], [40, 1.8], [50, 1.65], [60, 1.75])
    ]
    assert population.examples.y.tolist() == [1, 0, 1, 0]
    assert population.num_classes == 2
    values = _table(tmp_path, target="height", task="values", features=["age"])
    assert values.examples.y.dtype == np.float32
    assert values.num_classes is None
    by_age = _table(
        tmp_path,
        client=None,
        features=["height", "age"],
        clients=2,
        partition={"name": "continuous", "by": "age"},
    )
    assert [shard.tolist() for shard in by_age.shards] == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": "il"}, "a column 'il' .*Did you mean 'ill'"),
        ({"client": None}, "numbers in column 'site' .*'north'"),
        ({"text": "age;ill\n1;a\n2\n"}, "2 cells in line 3"),
        ({"text": "age;age\n1;a\n"}, "different names of columns"),
        ({"text": ""}, "different names of columns"),
        ({"text": "age;site;ill\n"}, "one row"),
        ({"text": TABLE.replace("1.80", "nan")}, "finite numbers in column 'height' .*line 3"),
        ({"text": TABLE.replace("1.80", "")}, "numbers in column 'height'"),
        ({"separator": "ab"}, "a CSV file at"),
        ({"target": "site", "task": "values", "client": None, "features": ["age"]}, "'site'"),
    ],
)
def test_invalid_tables_are_refused(tmp_path, changes, message):
    with pytest.raises(UsageError, match=message):
        _table(tmp_path, **changes)


def test_parquet_is_read_like_csv(tmp_path):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "table.parquet"
    columns = {"age": [30, 40, 50], "site": ["b", "a", "b"], "ill": [True, False, True]}
    pq.write_table(pa.table(columns), path)
    population = _load("parquet", file=str(path), target="ill", client="site", test=0)
    assert list(population.names) == ["a", "b"]
    assert population.examples.x.ravel().tolist() == [30, 40, 50]
    assert population.examples.y.tolist() == [1, 0, 1]
    pq.write_table(pa.table({"age": [1, None, 3], "ill": [0, 1, 0]}), path)
    with pytest.raises(UsageError, match="finite numbers in column 'age'"):
        _load("parquet", file=str(path), target="ill", clients=2)
    path.write_bytes(b"no parquet")
    with pytest.raises(UsageError, match="Expected a Parquet file"):
        _load("parquet", file=str(path), target="ill", clients=2)


@pytest.mark.parametrize(
    ("module", "settings", "message"),
    [
        (
            "pyarrow.parquet",
            {"source": "parquet", "file": "x", "target": "y"},
            "pip install pyarrow",
        ),
        (
            "flwr_datasets",
            {"source": "huggingface", "dataset": "x", "inputs": "x", "target": "y"},
            "pip install 'flwr-datasets",
        ),
    ],
)
def test_missing_packages_are_named(monkeypatch, module, settings, message):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError, match=message):
        sources.load(seed=1, clients=2, **settings)


# Hugging Face


class _Rows(dict):
    column_names = property(list)


@pytest.fixture
def hub(monkeypatch):
    """A stand-in for flwr-datasets with one data set."""
    images = [np.full((2, 3), value, np.uint8) for value in range(6)]
    splits = {
        "train": _Rows(
            image=images,
            label=[0, 1, 2, 0, 1, 2],
            writer=list("aabbcc"),
            height=[1.0, 1.5, math.nan, 1.7, math.inf, 1.6],
        ),
        "test": _Rows(image=images[:2], label=[0, 1], height=[math.nan, 1.0]),
    }

    class FederatedDataset:
        def __init__(self, *, dataset, subset, partitioners, shuffle):
            assert (dataset, subset, partitioners, shuffle) == ("x/y", None, {"train": 1}, False)

        def load_split(self, split):
            if split not in splits:
                raise ValueError(f"The given split: '{split}' is not present")
            return splits[split]

    module = types.ModuleType("flwr_datasets")
    module.FederatedDataset = FederatedDataset
    monkeypatch.setitem(sys.modules, "flwr_datasets", module)


def test_a_hub_data_set_is_split_by_fedloom(hub):
    """Images become channel first; its test split is the test."""
    named = {"dataset": "x/y", "inputs": "image", "target": "label"}
    population = _load("huggingface", **named, client="writer")
    assert list(population.names) == ["a", "b", "c"]
    assert population.examples.x.shape == (6, 1, 2, 3)
    assert population.examples.x.max() == pytest.approx(5 / 255)
    assert len(population.test) == 2
    without = _load("huggingface", **named, test_split="", test=0.5, clients=2)
    assert len(without.test) == 3
    with pytest.raises(UsageError, match=r"a column 'img'.*Known: height, image, label, writer"):
        _load("huggingface", **{**named, "inputs": "img"}, clients=2)
    with pytest.raises(UsageError, match="The split 'valid'"):
        _load("huggingface", **named, test_split="valid", clients=2)


def test_non_finite_values_of_a_hub_data_set_are_located(hub):
    named = {"dataset": "x/y", "inputs": "image", "target": "height"}
    assert list(_load("huggingface", **named, clients=2).flaws) == [
        "2 of 6 values of column 'height' of train, the first nan at [2]",
        "1 of 2 values of column 'height' of test, the first nan at [0]",
    ]
    assert not _load("huggingface", **{**named, "target": "label"}, clients=2).flaws


# arrays


def test_arrays_of_the_right_type_are_not_copied():
    x, y = np.zeros((6, 3), np.float32), np.arange(6) % 2
    population = sources.from_arrays(x, y, clients=2)
    assert population.examples.x is x
    assert population.examples.y is y
    assert population.test is None


def test_arrays_are_converted_for_models():
    """Floats float32, pixels in [0, 1], tokens int64; whole targets are classes."""
    labels = np.array([0, 2, 1], np.uint8)
    for given_, dtype, top in (
        (np.full((3, 2), 0.5), np.float32, 0.5),
        (np.full((3, 2), 255, np.uint8), np.float32, 1.0),
        (np.full((3, 2), 7, np.int32), np.int64, 7),
    ):
        population = sources.from_arrays(given_, labels, clients=3)
        assert population.examples.x.dtype == dtype
        assert population.examples.x.max() == top
        assert population.num_classes == 3
    assert sources.from_arrays(np.zeros((3, 2)), np.ones(3), clients=3).num_classes is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": np.zeros(3, np.int64)}, "one target for each"),
        ({"x": np.zeros((4, 1), dtype="U1")}, "inputs as numbers, got <U1"),
        ({"y": np.array(list("abcd"))}, "targets as numbers, got <U1"),
        ({"y": np.array([0, 1, -1, 2])}, "class numbers from 0"),
        ({"num_classes": 1}, "from 0 to 0, got 0 to 1"),
        ({"y": np.zeros(4), "num_classes": 2}, "Omit num_classes"),
        ({"owners": [1, 2]}, "one owner for each of 4"),
        ({"x_test": np.zeros((1, 2))}, "x_test and y_test go together"),
        ({"x_test": np.zeros((1, 3)), "y_test": np.zeros(1, int)}, r"test inputs of shape \(2,\)"),
        ({"x_test": np.zeros((1, 2)), "y_test": np.zeros(1, int), "test": 0.5}, "test, not both"),
        ({"test": 0.01}, "test = 0.01 takes 0 of 4 examples"),
        ({"clients": 5}, "as many as there are examples, got 5"),
    ],
)
def test_mismatched_arrays_are_refused(changes, message):
    given_ = {"x": np.zeros((4, 2)), "y": np.array([0, 1, 0, 1]), "clients": 2, **changes}
    with pytest.raises(UsageError, match=message):
        sources.from_arrays(given_.pop("x"), given_.pop("y"), **given_)


def test_a_file_of_arrays_is_read(tmp_path):
    x, y = np.random.default_rng(0).random((10, 2)), np.arange(10) % 2
    path = tmp_path / "arrays.npz"
    np.savez(path, x=x, y=y)
    assert len(_load("arrays", file=str(path), clients=2).test) == 2
    np.savez(path, x=x, y=y, x_test=x[:3], y_test=y[:3], owners=np.array(list("aabbccddee")))
    population = _load("arrays", file=str(path))
    assert (len(population), len(population.test), len(population.examples)) == (5, 3, 10)
    np.savez(path, x=x)
    with pytest.raises(UsageError, match="got no y"):
        _load("arrays", file=str(path), clients=2)


def test_torch_data_sets_are_stacked():
    torch = pytest.importorskip("torch")
    x, y = torch.arange(12.0).reshape(6, 2), torch.arange(6) % 3
    tensors = torch.utils.data.TensorDataset(x, y)
    subset = torch.utils.data.Subset(tensors, [5, 0, 3])
    whole = sources.from_torch(tensors, clients=2, test_dataset=subset)
    assert np.array_equal(whole.examples.x, x.numpy())
    assert whole.test.x.tolist() == [[10.0, 11.0], [0.0, 1.0], [6.0, 7.0]]
    assert whole.num_classes == 3
    listed = sources.from_torch([(np.ones(2), 0), (np.zeros(2), 4)], clients=2)
    assert listed.examples.y.tolist() == [0, 4]
    for dataset, message in (
        (iter([]), "map style"),
        ([], "an empty one"),
        ([1.0], r"examples as \(input, target\)"),
        ([(np.ones(2), 0), (np.ones(3), 0)], r"got \(3,\) and \(\) at 1"),
    ):
        with pytest.raises(UsageError, match=message):
            sources.from_torch(dataset, clients=1)
