"""LEAF, the python version of CIFAR, and Stack Overflow, each from a small file of that form."""

import io
import json
import os
import pickle
import struct
import tarfile

import numpy as np
import pytest

from fedloom.protocol.errors import UsageError
from fedloom.simulation import config, sources
from fedloom.simulation.api import simulate
from fedloom.simulation.sources.leaf import LETTERS


def _load(source, **settings):
    return sources.load(source=source, seed=1, **settings)


# ---- LEAF ----------------------------------------------------------------------------------------


def _leaf(folder, users, name="all_data_0_niid_0_keep_0_train_9.json"):
    folder.mkdir(parents=True, exist_ok=True)
    document = {
        "users": list(users),
        "num_samples": [len(held["y"]) for held in users.values()],
        "user_data": users,
        "hierarchies": ["a play"] * len(users),
    }
    (folder / name).write_text(json.dumps(document))


def _writers(counts):
    rng = np.random.default_rng(0)
    return {
        f"f{number:04}_{number}": {
            "x": rng.random((count, 784)).round(3).tolist(),
            "y": rng.integers(0, 62, count).tolist(),
        }
        for number, count in enumerate(counts)
    }


def test_femnist_has_a_client_for_each_writer(tmp_path):
    """Images of 28×28 in the order of the files; `test` has the central test examples."""
    users = _writers([3, 2, 4])
    names = list(users)
    _leaf(tmp_path / "train", {names[2]: users[names[2]]}, "all_data_1.json")
    _leaf(tmp_path / "train", {n: users[n] for n in names[:2]}, "all_data_0.json")
    _leaf(tmp_path / "test", {names[0]: users[names[2]]})
    population = _load("leaf", task="femnist", folder=str(tmp_path))
    assert population.sizes.tolist() == [3, 2, 4]
    assert population.names == sorted(names)
    assert population.num_classes == 62
    assert population.examples.x.shape == (9, 1, 28, 28)
    given = np.array(users[names[1]]["x"], np.float32)
    mine = population.shards[1]
    np.testing.assert_array_equal(population.examples.x[mine].reshape(2, -1), given)
    assert population.examples.y[mine].tolist() == users[names[1]]["y"]
    assert len(population.test) == 4


def test_shakespeare_predicts_the_next_character_at_every_place(tmp_path):
    """LEAF's target is the last; the others follow from the text."""
    speech = "To be, or not to be: that is the question"
    windows = {"x": [speech[i : i + 8] for i in range(6)], "y": [speech[i + 8] for i in range(6)]}
    _leaf(tmp_path, {"HAMLET": windows, "A GHOST": {"x": ["I am thy"], "y": [" "]}})
    population = _load("leaf", task="shakespeare", folder=str(tmp_path), test=0)
    assert (population.num_classes, len(LETTERS), len(set(LETTERS))) == (80, 80, 80)
    x, y = population.examples.x, population.examples.y
    assert "".join(LETTERS[token] for token in x[2]) == speech[2:10]
    assert "".join(LETTERS[token] for token in y[2]) == speech[3:11]
    assert sorted(population.sizes.tolist()) == [1, 6]


def test_sent140_has_the_most_frequent_words(tmp_path):
    """0 is padding, words follow by frequency, the last token stands for all others."""

    def tweet(text):
        return ["1467810369", "Mon Apr 06 22:19:45 PDT 2009", "NO_QUERY", "joe", text]

    users = {
        "joe": {"x": [tweet("good good, day"), tweet("good day")], "y": [1, 1]},
        "eve": {"x": [tweet("bad")], "y": [0]},
    }
    _leaf(tmp_path, users)
    population = _load("leaf", task="sent140", folder=str(tmp_path), test=0, words=2, length=3)
    assert population.examples.x.tolist() == [[1, 1, 3], [1, 2, 0], [3, 0, 0]]
    assert population.examples.y.tolist() == [1, 1, 0]
    model = {"name": "lstm", "vocabulary": 4, "hidden": 8}
    described = config.build(
        {
            "rounds": 1,
            "data": {
                "source": "leaf", "task": "sent140", "folder": str(tmp_path), "test": 0,
                "words": 2, "length": 3,
            },
            "model": model,
            "cohort": {"goal": 2},
            "train": {"epochs": 1, "learning_rate": 0.1},
        }
    )  # fmt: skip
    assert simulate(described, show=False).records[0].training["loss"] > 0


@pytest.mark.parametrize(
    ("task", "change", "message"),
    [
        ("femnist", {"x": [[0.1] * 783], "y": [1]}, "square images"),
        ("femnist", {"x": [[2.0] * 784], "y": [1]}, "pixels from 0 to 1 .* got 2 to 2"),
        ("femnist", {"x": [[0.1] * 784], "y": [62]}, "class numbers from 0 to 61 .* got 62"),
        ("femnist", {"x": [[0.1] * 784, [0.1]], "y": [1, 2]}, "of one length"),
        ("femnist", {"x": "text", "y": [1, 2, 3, 4]}, "Expected 4 inputs and targets .* got str"),
        ("shakespeare", {"x": ["To be"], "y": ["or"]}, "the next character"),
        ("shakespeare", {"x": ["To be", "or"], "y": ["a", "b"]}, "texts of one length"),
        ("shakespeare", {"x": ["T0 bé"], "y": ["a"]}, "80 characters .* got 'é'"),
        ("sent140", {"x": ["a tweet"], "y": [1]}, r"\[id, date, query, user, text\]"),
        ("femnst", {"x": ["a tweet"], "y": [1]}, "Did you mean 'femnist'"),
    ],
)
def test_a_bad_file_of_leaf_is_refused(tmp_path, task, change, message):
    """With the user and what was expected."""
    _leaf(tmp_path, {"joe": change})
    with pytest.raises(UsageError, match=message):
        _load("leaf", task=task, folder=str(tmp_path), test=0)


def test_leaf_without_files_or_with_others_is_refused(tmp_path):
    """An empty folder, another document, one user in two files."""
    with pytest.raises(UsageError, match="got none"):
        _load("leaf", task="femnist", folder=str(tmp_path))
    (tmp_path / "a.json").write_text("[1, 2]")
    with pytest.raises(UsageError, match=r"users, num_samples and user_data in .*a\.json"):
        _load("leaf", task="femnist", folder=str(tmp_path))
    _leaf(tmp_path, _writers([2]), "a.json")
    _leaf(tmp_path, _writers([2]), "b.json")
    with pytest.raises(UsageError, match=r"in one file, got 'f0000_0' again"):
        _load("leaf", task="femnist", folder=str(tmp_path))


# ---- CIFAR, python version -----------------------------------------------------------------------


def _text(value):
    return b"U" + bytes([len(value)]) + value


def _pickled(pixels, labels, key=b"labels"):
    """A dictionary as Python 2's pickle wrote it: protocol 2, texts as bytes."""
    rows = struct.pack("<H", len(pixels))
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01M" + rows + b"M\x00\x0c\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"
        b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
        b"T" + struct.pack("<i", pixels.size) + pixels.tobytes() + b"tb"
    )
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(" + _text(b"data") + array + _text(key) + numbers + b"u."


def _pixels(count):
    return (np.arange(count * 3072) * 31 % 256).astype(np.uint8).reshape(count, 3072)


def test_cifar_is_read_from_its_python_version(tmp_path):
    """From the archive or its files, with the values of the binary version."""
    pixels, labels = _pixels(3), [7, 0, 9]
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    with tarfile.open(tmp_path / "cifar-10-python.tar.gz", "w:gz") as tar:
        for name in names:
            content = _pickled(pixels, labels)
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    binary = tmp_path / "binary"
    binary.mkdir()
    rows = np.concatenate([np.array(labels, np.uint8)[:, None], pixels], axis=1)
    for name in names:
        (binary / f"{name}.bin").write_bytes(rows.tobytes())
    ours, theirs = (_load("cifar10", folder=str(f), clients=5) for f in (tmp_path, binary))
    assert ours.examples.x.tobytes() == theirs.examples.x.tobytes()
    assert ours.test.y.tolist() == theirs.test.y.tolist() == labels
    folder = tmp_path / "files" / "cifar-100-python"
    folder.mkdir(parents=True)
    for name in ("train", "test"):
        (folder / name).write_bytes(_pickled(pixels, [99, 0, 5], b"fine_labels"))
    population = _load("cifar100", folder=str(folder.parent), clients=2)
    assert population.examples.y.tolist() == [99, 0, 5]
    assert population.examples.x.dtype == np.float32


class _Evil:
    def __reduce__(self):
        return os.system, ("touch hacked",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps(_Evil()), r"names posix\.system, which is not read"),
        (pickle.dumps(np.array([_Evil()])), r"names posix\.system"),
        (pickle.dumps({b"data": np.zeros((2, 5), np.uint8), b"fine_labels": [0, 1]}), "3072"),
        (pickle.dumps([1, 2]), "got list"),
        (_pickled(_pixels(2), [1, 2]), "fine_labels in .* got data, labels"),
        (_pickled(_pixels(2), [1], b"fine_labels"), "2 labels from 0 to 99"),
        (_pickled(_pixels(2), [1, 100], b"fine_labels"), "1 to 100"),
        (b"\x80\x02}(", "python version of CIFAR-100"),
        (b"", "python version of CIFAR-100"),
    ],
)
def test_a_bad_pickle_is_refused_and_runs_nothing(tmp_path, monkeypatch, content, message):
    """Whatever it names."""
    monkeypatch.chdir(tmp_path)
    for name in ("train", "test"):
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=message):
        _load("cifar100", folder=str(tmp_path), clients=2)
    assert not (tmp_path / "hacked").exists()


# ---- Stack Overflow ------------------------------------------------------------------------------


def _stackoverflow(file, users):
    h5py = pytest.importorskip("h5py")
    with h5py.File(file, "w") as opened:
        for name, rows in users.items():
            group = opened.create_group(f"examples/{name}")
            for key in ("tokens", "title", "tags", "type", "creation_date"):
                data = rows if key == "tokens" else ["x"] * len(rows)
                group.create_dataset(key, data=[row.encode() for row in data])


def test_stackoverflow_predicts_the_next_word(tmp_path):
    """Begin, words by frequency, end, padding; padding is no target."""
    users = {"00000001": ["how do i sort", "sort it"], "00000002": ["i do"], "3": ["zz zz zz"]}
    _stackoverflow(tmp_path / "stackoverflow_train.h5", users)
    _stackoverflow(tmp_path / "stackoverflow_test.h5", {"00000001": ["do sort"]})
    (tmp_path / "stackoverflow.word_count").write_text("i 9\ndo 7\nsort 2\nrare 1\n")
    population = _load("stackoverflow", folder=str(tmp_path), words=3, length=4)
    assert population.num_classes == 7
    assert population.sizes.tolist() == [2, 1, 1]
    assert population.examples.x[0].tolist() == [1, 6, 4, 3]
    assert population.examples.y[0].tolist() == [6, 4, 3, 5]
    assert population.examples.x[2].tolist() == [1, 3, 4, 2]
    assert population.examples.y[2].tolist() == [3, 4, 2, -100]
    assert population.test.x.tolist() == [[1, 4, 5, 2]]
    few = _load("stackoverflow", folder=str(tmp_path), users=2, sentences=1, length=4)
    assert few.sizes.tolist() == [1, 1]


def test_stackoverflow_trains_a_language_model(tmp_path):
    """Words are counted without a file of counts."""
    users = {str(user): ["a b c a b c", "c b a"] * 5 for user in range(4)}
    _stackoverflow(tmp_path / "stackoverflow_train.h5", users)
    data = {"source": "stackoverflow", "folder": str(tmp_path), "words": 3, "length": 6}
    described = config.build(
        {
            "rounds": 2,
            "data": data,
            "model": {"name": "transformer", "width": 16, "layers": 1},
            "cohort": {"goal": 4},
            "train": {"epochs": 2, "batch_size": 4, "learning_rate": 0.3},
        }
    )
    records = simulate(described, show=False).records
    assert records[1].training["loss"] < records[0].training["loss"] < 3


@pytest.mark.parametrize("damage", ["missing", "text", "groups", "counts"])
def test_a_bad_file_of_stackoverflow_is_refused(tmp_path, damage):
    """With the file and the layout."""
    h5py = pytest.importorskip("h5py")
    file = tmp_path / "stackoverflow_train.h5"
    message = "examples/USER/tokens"
    if damage == "missing":
        message = r"stackoverflow_train\.h5, or stackoverflow\.sqlite.* got none"
    elif damage == "text":
        file.write_text("no HDF5")
    elif damage == "groups":
        with h5py.File(file, "w") as opened:
            opened.create_group("clients")
    elif damage == "counts":
        _stackoverflow(file, {"1": ["a b"]})
        (tmp_path / "stackoverflow.word_count").write_text("a 3\nb many\n")
        message = "a word and a count in line 2"
    with pytest.raises(UsageError, match=message):
        _load("stackoverflow", folder=str(tmp_path))
