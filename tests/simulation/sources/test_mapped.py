"""Data in files: the results of data in memory, without their memory."""

import json
import pickle
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from fedloom.protocol.errors import UsageError
from fedloom.simulation import config, sources
from fedloom.simulation.api import simulate
from fedloom.simulation.data.mapped import MappedRows


def _arrays(dtype=np.float32, count=90, shape=(1, 8, 8)):
    rng = np.random.default_rng(0)
    x = rng.random((count, *shape)) * (200 if np.dtype(dtype).kind in "iu" else 1)
    return {"x": x.astype(dtype), "y": rng.integers(0, 4, count), "owners": np.arange(count) % 6}


def _folder(folder, arrays):
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return str(folder)


def _experiment(source, file, *, kernel="auto", model="2nn", workers=1, **data):
    return config.build(
        {
            "rounds": 2,
            "data": {"source": source, "file": str(file), "held_out": 0.2, **data},
            "model": {"name": model},
            "cohort": {"goal": 4},
            "train": {"epochs": 2, "batch_size": 5, "learning_rate": 0.1},
            "engine": {"kernel": kernel, "workers": workers},
            "evaluate": True,
        }
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8, np.float16])
@pytest.mark.parametrize("kernel", ["fused", "resident"])
def test_mapped_data_give_the_bits_of_data_in_memory(tmp_path, dtype, kernel):
    """From a folder and from an archive, whatever the stored dtype."""
    arrays = _arrays(dtype)
    np.savez(tmp_path / "all.npz", **arrays)
    expected = simulate(_experiment("arrays", tmp_path / "all.npz", kernel=kernel), show=False)
    for file in (tmp_path / "all.npz", _folder(tmp_path / "folder", arrays)):
        described = _experiment("mapped", file, kernel=kernel)
        assert isinstance(described.population.examples.x, MappedRows)
        got = simulate(described, show=False)
        assert got.digest == expected.digest
        assert [r.test for r in got.records] == [r.test for r in expected.records]
        assert [r.evaluation for r in got.records] == [r.evaluation for r in expected.records]


@pytest.mark.long
def test_mapped_and_augmented_data_have_the_same_bits_in_two_workers(tmp_path):
    """Each process reads its own rows."""
    folder = _folder(tmp_path, _arrays(np.uint8))
    made = [
        simulate(
            _experiment("mapped", folder, model="digits-cnn", workers=n, transform=["flip"]),
            show=False,
        ).digest
        for n in (1, 2)
    ]
    assert made[0] == made[1]


def test_a_pickle_of_mapped_rows_has_no_rows(tmp_path):
    """Workers of Ray and on GPUs map the file themselves."""
    arrays = _arrays(count=5000)
    described = _experiment("mapped", _folder(tmp_path, arrays))
    rows = described.population.examples.x
    sent = pickle.dumps(rows)
    assert len(sent) < arrays["x"].nbytes / 10
    assert (pickle.loads(sent)[3:9] == rows[3:9]).all()
    assert rows.shape[0] + described.population.test.x.shape[0] == 5000


def test_tests_and_tokens_of_a_folder_are_used(tmp_path):
    """x_test and y_test are the central test examples; whole numbers are tokens."""
    arrays = _arrays(np.int32, shape=(7,))
    arrays |= {"x_test": arrays["x"][:9], "y_test": arrays["y"][:9]}
    population = sources.load(source="mapped", seed=1, file=_folder(tmp_path, arrays))
    assert population.examples.x.dtype == np.int64
    assert (population.test.x[:] == arrays["x"][:9]).all()
    assert len(population) == 6


@pytest.mark.parametrize("damage", ["compressed", "fortran", "no y", "short y", "cut", "tests"])
def test_arrays_that_cannot_be_mapped_are_refused(tmp_path, damage):
    """With what to write instead."""
    arrays = _arrays()
    file = tmp_path / "folder"
    if damage == "compressed":
        file = tmp_path / "all.npz"
        np.savez_compressed(file, **arrays)
        message = "without compression"
    elif damage == "fortran":
        arrays["x"] = np.asfortranarray(arrays["x"])
        message = "C order"
    elif damage == "no y":
        del arrays["y"]
        message = "got no y"
    elif damage == "short y":
        arrays["y"] = arrays["y"][1:]
        message = "one target for each"
    elif damage == "tests":
        arrays |= {"x_test": arrays["x"][:, :, 1:], "y_test": arrays["y"]}
        message = r"test inputs of shape \(1, 8, 8\)"
    if damage != "compressed":
        _folder(file, arrays)
    if damage == "cut":
        content = (file / "x.npy").read_bytes()
        (file / "x.npy").write_bytes(content[:-100])
        message = "x.npy"
    with pytest.raises(UsageError, match=message):
        sources.load(source="mapped", seed=1, file=str(file))


def test_what_reads_all_inputs_is_refused(tmp_path):
    """Partitions by inputs, and the batched kernel."""
    folder = _folder(tmp_path, _arrays())
    for partition in ({"name": "feature-shift"}, {"name": "continuous", "by": "mean"}):
        with pytest.raises(UsageError, match="reads all inputs at once"):
            sources.load(source="mapped", seed=1, file=folder, clients=3, partition=partition)
    by_target = {"name": "continuous", "by": "target"}
    assert len(sources.load(source="mapped", seed=1, file=folder, clients=3, partition=by_target))
    with pytest.raises(UsageError, match="these are mapped"):
        simulate(_experiment("mapped", folder, kernel="batched"), show=False)


# ---- memory --------------------------------------------------------------------------------------


def _peaks(folder, out):
    """Peak resident bytes of each process of a simulation, largest first.

    The first three are the parent and two workers; a helper process of the interpreter, seen for
    an instant, may follow.
    """
    settings = {
        "name": "big",
        "rounds": 2,
        "data": {"source": "mapped", "file": str(folder), "clients": 50, "test": 0.05},
        "model": {"name": "logistic"},
        "cohort": {"goal": 50},
        "train": {"epochs": 1, "batch_size": 100, "learning_rate": 0.01},
        "engine": {"workers": 2},
    }
    file = Path(out) / "big.py"
    file.write_text(f"experiment = {settings!r}\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "fedloom.cli.main", "simulate", str(file), "--json", "--out",
         str(folder / "out")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    peaks = {}
    while process.poll() is None:
        try:
            family = [psutil.Process(process.pid)]
            family += family[0].children(recursive=True)
            for member in family:
                peaks[member.pid] = max(peaks.get(member.pid, 0), member.memory_info().rss)
        except psutil.NoSuchProcess:
            pass
        time.sleep(0.005)
    out, err = process.communicate()
    assert process.returncode == 0, (out, err)
    assert json.loads(out)["digest"]
    return sorted(peaks.values(), reverse=True)


@pytest.mark.longest
@pytest.mark.e2e
def test_data_of_400_mb_do_not_become_resident(tmp_path):
    """Every example is trained on; no process is 150 MB larger than with 4 MB of data."""
    peaks = {}
    for name, count in (("small", 1_300), ("big", 130_000)):
        folder = tmp_path / name
        folder.mkdir()
        shape = (count, 3, 32, 32)
        x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.uint8, shape)
        for start in range(0, count, 1000):
            x[start : start + 1000] = start % 251
        x.flush()
        del x
        np.save(folder / "y.npy", np.arange(count) % 10)
        peaks[name] = _peaks(folder, tmp_path)
    assert (tmp_path / "big" / "x.npy").stat().st_size > 399e6
    print({name: [peak >> 20 for peak in found] for name, found in peaks.items()})
    small, big = peaks["small"][:3], peaks["big"][:3]
    assert len(small) == len(big) == 3
    assert max(b - s for b, s in zip(big, small, strict=True)) < 150e6
