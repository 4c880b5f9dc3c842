"""Hugging Face data sets with texts and mixed columns; needs the package `datasets`."""

import collections
import subprocess
import sys

import numpy as np
import pytest

from fedloom.protocol.errors import UsageError
from fedloom.simulation import config, sources
from fedloom.simulation.api import simulate

datasets = pytest.importorskip("datasets")

TEXTS = ["the cat sat.", "the dog", "a cat ran !", "dogs, the end", "the the", "end"]
MOODS = ["good", "bad", "good", "mixed", "bad", "good"]
MIXED = {
    "age": [30, 41, 52, 63, 18, 27],
    "weight": [60.5, 70.25, 80.0, 90.5, 55.0, 66.0],
    "smokes": [True, False, False, True, False, True],
    "site": ["north", "south", "east", "north", "east", "south"],
    "ill": MOODS,
}


def _dataset(**columns):
    return datasets.Dataset.from_dict(columns)


def _load(source, **settings):
    return sources.load(**{"source": source, "seed": 1, "clients": 2, "test": 0, **settings})


def _tokens(texts, words, length):
    """By the rule in the guide, with scikit-learn's splitting as the other implementation."""
    text = pytest.importorskip("sklearn.feature_extraction.text")
    cut = text.CountVectorizer(token_pattern=r"[\w']+|[.,!?;]", lowercase=False).build_analyzer()
    counts = collections.Counter(word for each in texts for word in cut(each))
    order = sorted(sorted(counts), key=counts.get, reverse=True)[:words]
    rows = [[order.index(w) + 1 if w in order else words + 1 for w in cut(t)] for t in texts]
    return [(row + [0] * length)[:length] for row in rows]


@pytest.mark.parametrize(("words", "length"), [(3, 4), (100, 2), (1, 9)])
def test_words_become_tokens_by_frequency(words, length):
    """Classes are numbered in the order of their names."""
    made = _load(_dataset(text=TEXTS, label=MOODS), text="text", words=words, length=length)
    assert made.examples.x.dtype == np.int64
    assert made.examples.x.tolist() == _tokens(TEXTS, words, length)
    assert list(made.class_names) == ["bad", "good", "mixed"]
    assert made.examples.y.tolist() == [1, 0, 1, 2, 0, 1]
    assert made.num_classes == 3


def test_characters_become_tokens():
    made = _load(_dataset(text=["abba", "b!"], y=[0, 1]), text="text", unit="characters", length=3)
    assert made.examples.x.tolist() == [[2, 1, 1], [1, 3, 0]]  # b three times, a twice


def test_words_are_those_of_training_and_classes_those_of_all():
    """A dictionary of clients has one vocabulary."""
    clients = {
        "a": _dataset(text=["x y", "x"], label=["no", "yes"]),
        "b": _dataset(text=["y", "x"], label=["no", "no"]),
    }
    test = _dataset(text=["x new", "y"], label=["perhaps", "no"])
    made = _load(clients, clients=None, text="text", length=2, words=5, test=test)
    assert made.examples.x.tolist() == [[1, 2], [1, 0], [2, 0], [1, 0]]
    assert made.test.x.tolist() == [[1, 6], [2, 0]]
    assert list(made.class_names) == ["no", "perhaps", "yes"]
    assert made.test.y.tolist() == [1, 0]


def test_mixed_columns_become_one_vector():
    """As pandas encodes them."""
    pandas = pytest.importorskip("pandas")
    inputs = ["age", "site", "smokes", "weight"]
    made = _load(_dataset(**MIXED), inputs=inputs, target="ill")
    frame = pandas.DataFrame(MIXED)[inputs]
    expected = pandas.get_dummies(frame, prefix_sep="=")[list(made.columns)].to_numpy(np.float32)
    assert list(made.columns) == [
        "age", "site=east", "site=north", "site=south", "smokes", "weight",
    ]  # fmt: skip
    assert made.examples.x.tobytes() == expected.tobytes()
    assert made.examples.x.dtype == np.float32


def test_a_class_label_keeps_its_own_order_and_all_its_names():
    features = datasets.Features(
        {
            "kind": datasets.ClassLabel(names=["z", "a", "never"]),
            "size": datasets.ClassLabel(names=["small", "large", "huge"]),
            "n": datasets.Value("int32"),
        }
    )
    wanted = {"inputs": ["size", "n"], "target": "kind"}
    columns = {"kind": [1, 0, 1, 0], "size": [0, 1, 1, 0], "n": [1, 2, 3, 4]}
    made = _load(datasets.Dataset.from_dict(columns, features=features), **wanted)
    assert made.num_classes == 3
    assert list(made.class_names) == ["z", "a", "never"]
    assert made.examples.y.tolist() == [1, 0, 1, 0]
    assert made.examples.x.tolist() == [[1, 0, 0, 1], [0, 1, 0, 2], [0, 1, 0, 3], [1, 0, 0, 4]]
    columns["size"] = [0, -1, 1, 0]
    with pytest.raises(UsageError, match="column 'size' of data, got -1 in row 2, which is"):
        _load(datasets.Dataset.from_dict(columns, features=features), **wanted)


ROWS = """
def both(row):
    return [row["age"] / 10, len(row["text"])], row["ill"] == "bad"
"""


def test_a_function_of_a_row_joins_text_and_numbers(tmp_path):
    """Given itself, or by its file."""
    file = tmp_path / "rows.py"
    file.write_text(ROWS)
    space = {}
    exec(ROWS, space)
    data = _dataset(text=TEXTS, **MIXED)
    for function in (space["both"], f"{file}:both"):
        made = _load(data, columns=function, client="site", clients=None)
        expected = [[a / 10, len(t)] for a, t in zip(MIXED["age"], TEXTS, strict=True)]
        assert made.examples.x.tolist() == np.float32(expected).tolist()
        assert made.examples.y.tolist() == [int(mood == "bad") for mood in MOODS]
        assert made.names == ["east", "north", "south"]


@pytest.mark.parametrize("form", [None, "numpy", "torch"])
def test_images_have_channels_first_in_every_format(form):
    """NumPy's format has them last, torch's first; bytes in lists are pixels as declared."""
    image = pytest.importorskip("PIL.Image")
    pixels = np.arange(48).reshape(2, 2, 4, 3).astype(np.uint8)
    made = [image.fromarray(each) for each in pixels]
    population = _load(_dataset(x=made, y=[0, 1]).with_format(form))
    expected = pixels.transpose(0, 3, 1, 2).astype(np.float32) / np.float32(255)
    np.testing.assert_array_equal(population.examples.x, expected)
    declared = datasets.Features(
        {"x": datasets.Array2D((2, 3), "uint8"), "y": datasets.Value("int64")}
    )
    rows = np.arange(12).reshape(2, 2, 3)
    listed = datasets.Dataset.from_dict({"x": rows.tolist(), "y": [0, 1]}, features=declared)
    population = _load(listed.with_format(form))
    assert population.examples.x.dtype == np.float32
    assert population.examples.x.max() == np.float32(11) / np.float32(255)


def test_the_target_is_no_input_and_each_row_has_an_owner():
    with pytest.raises(UsageError, match="inputs without the column 'y', which is target"):
        _load(_dataset(x=[1, 2], y=[0, 1]), inputs="y", target="y")
    with pytest.raises(UsageError, match="owner of each example, got None in row 2"):
        _load(_dataset(x=[1, 2], y=[0, 1], c=["a", None]), client="c", clients=None)
    with pytest.raises(UsageError, match="Expected rows in column 'x', got none"):
        _load(_dataset(x=[], y=[]))


MANY = [f"text {n}" for n in range(101)]


@pytest.mark.parametrize(
    ("columns", "settings", "message"),
    [
        ({"t": ["a", None], "y": [0, 1]}, {"text": "t"}, "'t' of data, got None in row 2, which"),
        ({"t": [1, 2], "y": [0, 1]}, {"text": "t"}, "texts in column 't' of data, got int"),
        ({"t": ["a", "b"], "n": [1, 2], "y": [0, 1]}, {"text": "t", "inputs": ["n"]},
         "Text and other columns are not joined to one input: give columns"),
        ({"t": MANY, "n": [1] * 101, "y": [0] * 101}, {"inputs": ["t", "n"]},
         "at most 100 categories in column 't' of data, got 101 different texts"),
        ({"n": [1.0, None], "m": [1, 2], "y": [0, 1]}, {"inputs": ["m", "n"]}, "None in row 2"),
        ({"n": [1.0, float("nan")], "m": [1, 2], "y": [0, 1]}, {"inputs": ["m", "n"]},
         "got nan in row 2, which is missing"),
        ({"n": [1.0, 1e39], "m": [1, 2], "y": [0, 1]}, {"inputs": ["m", "n"]},
         "finite numbers in column 'n' of data, got float '1e\\+39' in row 2"),
        ({"n": [[1.0], [2.0]], "m": [1, 2], "y": [0, 1]}, {"inputs": ["m", "n"]},
         "finite numbers in column 'n' of data, got list"),
        ({"n": [1, 2], "y": [0, 1]}, {"inputs": ["n", "n"]}, "different columns"),
        ({"n": [1, 2], "y": [0, 1]}, {"inputs": ["n", "y"]}, "'y', which is target"),
        ({"n": [1, 2], "y": [0, 1]}, {"inputs": ["k"]}, "a column 'k' of data"),
        ({"n": [1, 2], "y": ["a", None]}, {"inputs": "n"}, "texts in column 'y'|None in row 2"),
        ({"n": [1, 2], "y": [0, 1]}, {"text": "n", "unit": "bytes"}, "unit of text"),
        ({"n": [1, 2], "y": [0, 1]}, {"text": "n", "length": 0}, "length and words"),
        ({"n": [1, 2], "y": [0, 1]}, {"columns": len, "target": "y"}, "without inputs, text"),
        ({"n": [1, 2], "y": [0, 1]}, {"columns": 7}, "a function of a row, or FILE.py:NAME"),
        ({"n": [1, 2], "y": [0, 1]}, {"columns": len}, r"Expected \(x, y\).*got int in row 1"),
        ({"n": [1, 0], "y": [0, 1]}, {"columns": lambda row: (1 / row["n"], row["y"])},
         "failed in row 2 of data: .*ZeroDivisionError"),
    ],
)  # fmt: skip
def test_bad_columns_are_refused_with_their_row(columns, settings, message):
    with pytest.raises(UsageError, match=message):
        _load(_dataset(**columns), **settings)


def test_a_category_of_the_test_split_has_a_place():
    """So that a model has the same inputs for both."""
    train = _dataset(site=["b", "c"], n=[1, 2], y=[0, 1])
    test = _dataset(site=["a", "b"], n=[3, 4], y=[0, 1])
    made = _load(datasets.DatasetDict(train=train, test=test), inputs=["site", "n"], test=None)
    assert list(made.columns) == ["site=a", "site=b", "site=c", "n"]
    assert made.test.x.tolist() == [[1, 0, 0, 3], [0, 1, 0, 4]]


def test_settings_of_columns_need_columns():
    with pytest.raises(UsageError, match="with text, got data without columns"):
        _load((np.zeros((4, 2)), np.zeros(4, int)), text="t")


@pytest.mark.long
def test_a_model_learns_from_texts():
    """A class is told by a word."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 400)
    filler = rng.choice(["so", "it", "was", "here"], (400, 4))
    said = np.where(labels, "fine", "awful")
    texts = [" ".join([*f, word]) for f, word in zip(filler, said, strict=True)]
    data = _dataset(text=texts, mood=["up" if y else "down" for y in labels])
    experiment = config.build(
        {
            "rounds": 10,
            "data": {
                "source": data, "clients": 8, "text": "text", "target": "mood", "words": 20,
                "length": 5,
            },
            "model": {"name": "lstm", "vocabulary": 22, "embedding": 8, "hidden": 16},
            "cohort": {"goal": 8},
            "train": {"epochs": 5, "batch_size": 5, "learning_rate": 1.0},
        }
    )  # fmt: skip
    assert simulate(experiment, show=False).records[-1].test["accuracy"] > 0.9


SCRIPT = """
import datasets
experiment = {
    "data": {
        "source": datasets.Dataset.from_dict(%r), "clients": 2, "test": 0,
        "inputs": ["age", "site"], "target": "ill",
    },
    "model": {"name": "logistic"}, "rounds": 1, "cohort": {"goal": 2},
    "train": {"epochs": 1, "batch_size": 2, "learning_rate": 0.1},
}
"""


@pytest.mark.long
def test_the_description_names_inputs_and_classes(tmp_path):
    file = tmp_path / "mixed.py"
    file.write_text(SCRIPT % MIXED)
    ran = subprocess.run(
        [sys.executable, "-m", "fedloom.cli.main", "simulate", str(file), "--describe"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    shown = {line.split("  ")[0]: line.split("  ")[-1] for line in ran.stdout.splitlines()}
    assert shown["inputs"].strip() == "0 age, 1 site=east, 2 site=north, 3 site=south"
    assert shown["names of classes"].strip() == "0 bad, 1 good, 2 mixed"
