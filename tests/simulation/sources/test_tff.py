"""TensorFlow Federated's files, from small ones written by sqlite3, lzma, h5py and by hand."""

import lzma
import sqlite3
import struct

import numpy as np
import pytest

from fedloom.protocol.errors import UsageError
from fedloom.simulation import config, sources
from fedloom.simulation.api import simulate
from fedloom.simulation.sources.tff.example import features
from fedloom.simulation.sources.tff.federated import CHARACTERS


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The folder of unpacked files."""
    monkeypatch.setenv("FEDLOOM_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache" / "converted"


def _load(source, folder, **settings):
    return sources.load(source=source, seed=1, folder=str(folder), **settings)


# ---- tf.train.Example ----------------------------------------------------------------------------


def _varint(value):
    value &= (1 << 64) - 1
    out = bytearray()
    while True:
        out.append(value & 127 | (128 if value > 127 else 0))
        value >>= 7
        if not value:
            return bytes(out)


def _field(number, content):
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _example(**given):
    """The message as protobuf's encoding has it: bytes, floats or whole numbers by name."""
    entries = b""
    for name, value in given.items():
        if isinstance(value, bytes):
            kind = _field(1, _field(1, value))
        elif np.asarray(value).dtype.kind == "f":
            kind = _field(2, _field(1, np.asarray(value, "<f4").tobytes()))
        else:
            kind = _field(3, _field(1, b"".join(map(_varint, np.ravel(value).tolist()))))
        entries += _field(1, _field(1, name.encode()) + _field(2, kind))
    return _field(1, entries)


def test_an_example_of_tensorflow_s_guide_is_decoded():
    """The bytes as https://www.tensorflow.org/tutorials/load_data/tfrecord prints them."""
    found = features(
        b"\nR\n\x14\n\x08feature2\x12\x08\n\x06\n\x04goat\n\x11\n\x08feature1\x12\x05\x1a\x03\n"
        b"\x01\x04\n\x14\n\x08feature3\x12\x08\x12\x06\n\x04[\xd3|?\n\x11\n\x08feature0\x12\x05"
        b"\x1a\x03\n\x01\x00"
    )
    assert (found["feature0"].tolist(), found["feature1"].tolist()) == ([0], [4])
    assert found["feature2"] == b"goat"
    assert found["feature3"] == np.float32(0.9876)


def test_numbers_may_be_negative_and_unpacked():
    """int64 in ten bytes; a value a field, as proto2 writes repeated fields."""
    assert features(_example(n=[-3, 1 << 40]))["n"].tolist() == [-3, 1 << 40]
    unpacked = b"".join(b"\x0d" + struct.pack("<f", value) for value in (0.5, -2))
    feature = _field(2, unpacked)
    assert features(_field(1, _field(1, _field(1, b"f") + _field(2, feature))))["f"].tolist() == [
        0.5,
        -2,
    ]
    for damaged in (b"\nR\n", b"text that is no message", _example(n=[1])[:-1]):
        with pytest.raises(ValueError, match=r"tf\.train\.Example"):
            features(damaged)


# ---- files ---------------------------------------------------------------------------------------


def _database(file, splits, *, claimed=0, compressed=False):
    """A database as TensorFlow Federated's SqlClientData documents it."""
    plain = file.with_name(f"{file.name}.plain")
    with sqlite3.connect(plain) as opened:
        opened.execute(
            "CREATE TABLE examples (split_name TEXT NOT NULL, client_id TEXT NOT NULL,"
            " serialized_example_proto BLOB NOT NULL)"
        )
        opened.execute(
            "CREATE TABLE client_metadata (client_id TEXT NOT NULL, split_name TEXT NOT NULL,"
            " num_examples INTEGER NOT NULL)"
        )
        opened.execute("CREATE INDEX i ON examples (split_name, client_id)")
        for split, clients in splits.items():
            for name, rows in clients.items():
                opened.executemany(
                    "INSERT INTO examples VALUES (?, ?, ?)", [(split, name, row) for row in rows]
                )
                opened.execute(
                    "INSERT INTO client_metadata VALUES (?, ?, ?)",
                    (name, split, len(rows) + claimed),
                )
    opened.close()
    if compressed:
        packed = lzma.compress(plain.read_bytes(), lzma.FORMAT_ALONE)
        file.with_name(f"{file.name}.lzma").write_bytes(packed)
        plain.unlink()
    else:
        plain.rename(file)


USERS = {
    "train": {"00000001": ["how do i sort", "sort it"], "3": ["zz zz zz"], "00000002": ["i do"]},
    "heldout": {"9": ["never read"]},
    "test": {"00000001": ["do sort"]},
}


def _sentences(users):
    return {
        split: {
            name: [_example(tokens=row.encode(), score=[-1], title=b"x") for row in rows]
            for name, rows in clients.items()
        }
        for split, clients in users.items()
    }


@pytest.mark.parametrize("compressed", [False, True])
def test_stack_overflow_of_a_database_is_that_of_hdf5(tmp_path, compressed, cache):
    """The same users, tokens and test examples, whichever file people have."""
    h5py = pytest.importorskip("h5py")
    for folder in ("database", "hdf5"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "stackoverflow.word_count").write_text("i 9\ndo 7\nsort 2\n")
    _database(
        tmp_path / "database" / "stackoverflow.sqlite", _sentences(USERS), compressed=compressed
    )
    for split in ("train", "test"):
        with h5py.File(tmp_path / "hdf5" / f"stackoverflow_{split}.h5", "w") as opened:
            for name, rows in USERS[split].items():
                opened.create_dataset(
                    f"examples/{name}/tokens", data=[row.encode() for row in rows]
                )
    for settings in ({}, {"users": 2, "sentences": 1}):
        ours, theirs = (
            _load("stackoverflow", tmp_path / folder, words=3, length=4, **settings)
            for folder in ("database", "hdf5")
        )
        assert ours.examples.x.tolist() == theirs.examples.x.tolist()
        assert ours.examples.y.tolist() == theirs.examples.y.tolist()
        assert ours.test.x.tolist() == theirs.test.x.tolist() == [[1, 4, 5, 2]]
        assert ours.names == theirs.names
    assert len(list(cache.iterdir())) == 1 if compressed else not cache.exists()


def _emnist(count, seed=0):
    rng = np.random.default_rng(seed)
    pixels = rng.random((count, 28, 28)).astype(np.float32)
    return pixels, rng.integers(0, 62, count)


def _both(folder, database, files, splits, write):
    """The same clients as a database and as HDF5 files."""
    h5py = pytest.importorskip("h5py")
    for name in ("database", "hdf5"):
        (folder / name).mkdir()
    _database(folder / "database" / database, {s: write(users) for s, users in splits.items()})
    for file, users in zip(files, splits.values(), strict=True):
        with h5py.File(folder / "hdf5" / file, "w") as opened:
            for name, held in users.items():
                for feature, values in held.items():
                    opened.create_dataset(f"examples/{name}/{feature}", data=values)


def test_emnist_has_a_client_for_each_writer(tmp_path):
    """Images as they are in the file, and its own test examples; the other split is not read."""
    made = {f"f{n:04}_{n}": _emnist(count, n) for n, count in enumerate((3, 1, 2))}
    splits = {
        "all_train": {name: {"pixels": x, "label": y} for name, (x, y) in made.items()},
        "all_test": {"f0001_1": {"pixels": made["f0001_1"][0], "label": [61]}},
    }

    def write(users):
        return {
            name: [
                _example(pixels=np.ravel(x), label=[int(y)])
                for x, y in zip(held["pixels"], held["label"], strict=True)
            ]
            for name, held in users.items()
        }

    files = ("fed_emnist_train.h5", "fed_emnist_test.h5")
    _both(tmp_path, "emnist_all.sqlite", files, splits, write)
    for folder in ("database", "hdf5"):
        population = _load("tff", tmp_path / folder, task="emnist")
        assert population.names == sorted(made)
        assert population.num_classes == 62
        for name, shard in zip(population.names, population.shards, strict=True):
            np.testing.assert_array_equal(population.examples.x[shard][:, 0], made[name][0])
            np.testing.assert_array_equal(population.examples.y[shard], made[name][1])
        assert population.test.y.tolist() == [61]
        assert len(_load("tff", tmp_path / folder, task="emnist", users=2)) == 2
    with pytest.raises(UsageError, match=r"split 'digits_only_train'.* got none"):
        _load("tff", tmp_path / "database", task="emnist-digits")


def test_cifar100_is_pixels_channel_by_channel(tmp_path):
    """Whole numbers in a database, bytes in HDF5."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (4, 32, 32, 3)).astype(np.uint8)
    labels = [99, 0, 5, 7]
    users = {
        "0": {"image": images[:3], "label": labels[:3]},
        "1": {"image": images[3:], "label": labels[3:]},
    }
    splits = {"train": users, "test": {"0": users["0"]}}

    def write(given):
        return {
            name: [
                _example(image=image, label=[label], coarse_label=[1])
                for image, label in zip(held["image"], held["label"], strict=True)
            ]
            for name, held in given.items()
        }

    _both(
        tmp_path,
        "cifar100.sqlite",
        ("fed_cifar100_train.h5", "fed_cifar100_test.h5"),
        splits,
        write,
    )
    for folder in ("database", "hdf5"):
        population = _load("tff", tmp_path / folder, task="cifar100")
        expected = images.transpose(0, 3, 1, 2).astype(np.float32) / np.float32(255)
        np.testing.assert_array_equal(population.examples.x, expected)
        assert population.examples.y.tolist() == labels
        assert len(population.test) == 3


def test_shakespeare_has_each_character_as_a_target_once(tmp_path):
    """Begin and end of a speech, windows that share a character, no target at padding."""
    said = {"HAMLET": ["To be, or not", "Ay."], "GHOST": ["Märk me"]}
    splits = {"train": {n: [_example(snippets=t.encode()) for t in s] for n, s in said.items()}}
    _database(tmp_path / "shakespeare.sqlite", splits)
    population = _load("tff", tmp_path, task="shakespeare", length=6, test=0)
    assert (population.num_classes, len(set(CHARACTERS))) == (90, 86)
    letters = {3 + n: letter for n, letter in enumerate(CHARACTERS)} | {1: "^", 2: "$", 89: "?"}
    spoken = dict.fromkeys(population.names, "")
    for name, shard in zip(population.names, population.shards, strict=True):
        for x, y in zip(population.examples.x[shard], population.examples.y[shard], strict=True):
            assert x[1:][y[:-1] != -100].tolist() == y[:-1][y[:-1] != -100].tolist()
            spoken[name] += "".join(letters[token] for token in y[y != -100])
            assert (y != -100).any()
    assert spoken == {"GHOST": "M??rk me$", "HAMLET": "To be, or not$Ay.$"}
    assert population.examples.x[:, 0].tolist().count(1) == 3


@pytest.mark.long
def test_a_language_model_trains_on_a_database(tmp_path):
    users = {str(user): ["a b c a b c", "c b a"] * 5 for user in range(4)}
    _database(tmp_path / "stackoverflow.sqlite", _sentences({"train": users}), compressed=True)
    described = config.build(
        {
            "rounds": 2,
            "data": {
                "source": "stackoverflow", "folder": str(tmp_path), "words": 3, "length": 6
            },
            "model": {"name": "transformer", "width": 16, "layers": 1},
            "cohort": {"goal": 4},
            "train": {"epochs": 2, "batch_size": 4, "learning_rate": 0.3},
        }
    )  # fmt: skip
    records = simulate(described, show=False).records
    assert records[1].training["loss"] < records[0].training["loss"] < 3


# ---- damaged files -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"pixels": np.zeros(783), "label": [1]}, r"pixels of shape \(28, 28\)"),
        ({"pixels": np.zeros(784), "label": [1, 2]}, "one label each"),
        ({"pixels": np.zeros(784), "label": [62]}, "labels from 0 to 61 for user 'a', got 62"),
        ({"pixels": np.zeros(784), "label": [-1]}, "labels from 0 to 61"),
        ({"pixels": np.zeros(784), "label": [1.0]}, "labels from 0 to 61"),
        ({"pixels": np.full(784, 2.0), "label": [1]}, "pixels from 0 to 1 .*got float32"),
        ({"pixels": np.full(784, np.nan), "label": [1]}, "pixels from 0 to 1"),
        ({"pixels": np.zeros(784, int), "label": [1]}, "pixels from 0 to 1 .*got int64"),
        ({"pixels": np.zeros(784)}, "with examples of pixels and label, got KeyError: 'label'"),
        ({"pixels": b"text", "label": [1]}, "user 'a'"),
    ],
)
def test_an_example_of_another_form_is_refused(tmp_path, row, message):
    _database(tmp_path / "emnist_all.sqlite", {"all_train": {"a": [_example(**row)]}})
    with pytest.raises(UsageError, match=message):
        _load("tff", tmp_path, task="emnist", test=0)


@pytest.mark.parametrize("damage", ["text", "empty", "cut", "table", "rows", "proto", "null"])
def test_a_damaged_database_is_refused(tmp_path, damage):
    """Also one that is only cut, or has fewer examples than its metadata say."""
    file = tmp_path / "stackoverflow.sqlite"
    rows = _sentences({"train": {str(n): ["a b c " * 50] * 20 for n in range(20)}})
    _database(file, rows, claimed=int(damage == "rows"))
    changes = {
        "table": "DROP TABLE client_metadata",
        "proto": "UPDATE examples SET serialized_example_proto = x'FFFF'",
        "null": "UPDATE examples SET serialized_example_proto = 'text'",
    }
    if damage == "text":
        file.write_text("no database, but a text of some length " * 50)
    elif damage == "empty":
        file.write_bytes(b"")
    elif damage == "cut":
        file.write_bytes(file.read_bytes()[:30_000])
    elif damage in changes:
        with sqlite3.connect(file) as opened:
            opened.execute(changes[damage])
        opened.close()
    with pytest.raises(UsageError, match=r"SQLite file at .*stackoverflow\.sqlite"):
        _load("stackoverflow", tmp_path)


def test_a_compressed_file_that_is_cut_off_leaves_nothing(tmp_path, cache):
    _database(tmp_path / "stackoverflow.sqlite", _sentences(USERS), compressed=True)
    file = tmp_path / "stackoverflow.sqlite.lzma"
    for content in (file.read_bytes()[:-50], b"", b"no lzma"):
        file.write_bytes(content)
        with pytest.raises(UsageError, match=r"lzma cannot be unpacked|SQLite file at"):
            _load("stackoverflow", tmp_path)
        assert list(cache.iterdir()) == []


def test_clients_without_examples_are_left_out_and_settings_checked(tmp_path):
    _database(tmp_path / "stackoverflow.sqlite", _sentences({"train": {"a": [], "b": ["x y"]}}))
    assert _load("stackoverflow", tmp_path, test=0).names == ["b"]
    with pytest.raises(UsageError, match="users and length >= 1"):
        _load("tff", tmp_path, task="emnist", users=0)
    with pytest.raises(UsageError, match="Did you mean 'emnist'"):
        _load("tff", tmp_path, task="emnst")
    with pytest.raises(UsageError, match="got none"):
        _load("tff", tmp_path, task="shakespeare")
