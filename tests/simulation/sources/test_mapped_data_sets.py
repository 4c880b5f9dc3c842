"""Hugging Face data sets larger than memory: the results of the same data in memory."""

import subprocess
import sys

import numpy as np
import pytest

from fedloom.protocol.errors import UsageError
from fedloom.simulation import sources
from fedloom.simulation.data.mapped import MappedRows

datasets = pytest.importorskip("datasets")
COUNT = 9000  # three pieces


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The folder of converted rows."""
    monkeypatch.setenv("FEDLOOM_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache" / "converted"


def _columns(count=COUNT):
    rng = np.random.default_rng(0)
    return {
        "x": rng.random((count, 3)).tolist(),
        "age": rng.integers(0, 90, count).tolist(),
        "site": [f"s{row % 5}" for row in range(count)],
        "text": [f"word{row % 7} and {row}" for row in range(count)],
        "label": rng.choice(["no", "yes"], count).tolist(),
    }


def _saved(folder, columns):
    datasets.Dataset.from_dict(columns).save_to_disk(str(folder))
    return datasets.load_from_disk(str(folder))


@pytest.mark.parametrize(
    "settings",
    [
        {"inputs": "x"},
        {"inputs": ["age", "site"], "client": None, "clients": 4},
        {"text": "text", "words": 5, "length": 3},
        {"inputs": "x", "target": "age"},
    ],
)
def test_rows_of_files_are_those_in_memory(tmp_path, cache, settings):
    """Also classes, owners and test examples, after select and shuffle; converted once."""
    given = {"target": "label", "client": "site", "test": 0.1, "seed": 1} | settings
    data = _saved(tmp_path / "saved", _columns()).shuffle(seed=3)
    expected = sources.load(source=data, **given)
    for _ in range(2):
        made = sources.load(source=data, mapped=True, **given)
        assert isinstance(made.examples.x, MappedRows)
        for mine, theirs in ((made.examples, expected.examples), (made.test, expected.test)):
            np.testing.assert_array_equal(mine.x[:], theirs.x)
            np.testing.assert_array_equal(mine.y, theirs.y)
        assert (made.names, made.class_names) == (expected.names, expected.class_names)
        assert made.columns == expected.columns
    assert len(list(cache.iterdir())) == 1
    other = sources.load(source=data.select(range(5000)), mapped=True, **given)
    assert len(other.examples) + len(other.test) == 5000


def test_a_split_for_the_test_is_mapped_too(tmp_path):
    train, test = (_saved(tmp_path / name, _columns(n)) for name, n in (("a", 50), ("b", 20)))
    both = datasets.DatasetDict(train=train, test=test)
    made = sources.load(
        source=both, mapped=True, seed=1, clients=2, inputs="x", target="age", test=None
    )
    assert isinstance(made.test.x, MappedRows)
    assert made.num_classes == max(*train["age"], *test["age"]) + 1


def test_what_cannot_be_mapped_is_refused(tmp_path):
    """And a bad cell is named with its rows."""
    columns = _columns()
    columns["age"][8200] = None
    data = _saved(tmp_path / "saved", columns)
    given = {"mapped": True, "seed": 1, "clients": 2, "target": "label"}
    with pytest.raises(UsageError, match="column 'age' of data, got None in row 8201"):
        sources.load(source=data, inputs=["age"], **given)
    with pytest.raises(UsageError, match="Apply the function with its map first"):
        sources.load(source=data, mapped=True, seed=1, columns=lambda row: (row["x"], 1))
    with pytest.raises(UsageError, match="one Hugging Face data set with mapped"):
        sources.load(source={"a": data}, inputs="x", mapped=True, seed=1, target="label")
    with pytest.raises(UsageError, match="one Hugging Face data set with mapped"):
        sources.load(source=(np.zeros((4, 2)), np.zeros(4, int)), mapped=True, seed=1)


PEAK = """
import sys
import datasets
from fedloom.simulation import sources
data = datasets.load_from_disk(sys.argv[1])
made = sources.load(source=data, seed=1, clients=50, test=0, inputs="x", target="y", mapped=True)
for shard in made.shards[::5]:
    made.examples.x[shard[:100]]
# getrusage would give that of the process that started this one, if it was larger.
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.long
def test_a_data_set_of_400_mb_does_not_become_resident(tmp_path):
    """Peak memory grows by its targets and some rows, not by its inputs."""
    features = datasets.Features(
        {"x": datasets.List(datasets.Value("float32"), length=1000), "y": datasets.Value("int8")}
    )
    peaks = []
    for count in (10_000, 100_000):

        def rows(count=count):
            rng = np.random.default_rng(0)
            for row in range(count):
                yield {"x": rng.random(1000, np.float32), "y": row % 3}

        folder = tmp_path / str(count)
        made = datasets.Dataset.from_generator(
            rows, features=features, cache_dir=str(tmp_path / "arrow")
        )
        made.save_to_disk(str(folder))
        ran = subprocess.run(
            [sys.executable, "-c", PEAK, str(folder)], capture_output=True, text=True, check=True
        )
        peaks.append(int(ran.stdout) << 10)
    assert sum(file.stat().st_size for file in folder.glob("*.arrow")) > 399e6
    print([peak >> 20 for peak in peaks])
    assert peaks[1] - peaks[0] < 100e6
