"""Arrays that are read from files: their values and their lifetime."""

import os
from pathlib import Path

import numpy as np
import pytest

from fedloom.protocol.errors import IntegrityError
from fedloom.protocol.tensors.container import read_params, write_file
from fedloom.protocol.tensors.file_arrays import Scratch, stored_params


def arrays():
    """Of several dtypes and shapes."""
    rng = np.random.default_rng(0)
    return {
        "w": rng.standard_normal((300, 400), dtype=np.float32),
        "half": rng.standard_normal(70).astype(np.float16),
        "bf": rng.standard_normal((3, 5), dtype=np.float32),
        "steps": np.array(7, np.int64),
        "none": np.zeros((4, 0)),
    }


def test_file_arrays_equal_the_read_file(tmp_path):
    """For every dtype; bfloat16 widened."""
    path = tmp_path / "a"
    write_file(path, arrays(), {"bf": "BF16"})
    expected = read_params(path)
    for name, values in stored_params(path).items():
        assert (values.shape, values.dtype) == (expected[name].shape, expected[name].dtype)
        np.testing.assert_array_equal(np.asarray(values), expected[name])


def test_file_arrays_survive_the_replacement_of_their_file(tmp_path):
    path, copy = tmp_path / "a", tmp_path / "b"
    digest = write_file(path, arrays())
    found = stored_params(path)
    write_file(path, {"w": np.zeros(1)})
    path.unlink()
    assert write_file(copy, found) == digest


def test_a_piece_ends_where_its_array_does(tmp_path):
    """The next bytes belong to another array."""
    path = tmp_path / "a"
    write_file(path, {"a": np.arange(5.0), "b": np.ones(5)})
    np.testing.assert_array_equal(stored_params(path)["a"].piece(3, 99), [3.0, 4.0])


def test_a_file_truncated_later_is_an_error(tmp_path):
    """The missing bytes are not read as zeros."""
    path = tmp_path / "a"
    write_file(path, {"a": np.arange(5.0)})
    found = stored_params(path)
    os.truncate(path, path.stat().st_size - 8)
    with pytest.raises(IntegrityError, match="got its end"):
        np.asarray(found["a"])


def open_files():
    """The number of open files of this process; 0 if the system does not report it."""
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.is_dir() else 0


def test_scratch_is_unnamed_and_freed_with_its_arrays(tmp_path):
    """Arrays hold the written values, zeros elsewhere."""
    before = open_files()
    scratch = Scratch(tmp_path)
    kept, room = scratch.keep(arrays()["w"]), scratch.room((2, 3), np.dtype(np.float32))
    room.put(1, np.array([5.0, 6.0]))
    assert not list(tmp_path.iterdir())
    del scratch
    np.testing.assert_array_equal(np.asarray(kept), arrays()["w"])
    np.testing.assert_array_equal(np.asarray(room), [[0, 5, 6], [0, 0, 0]])
    del kept, room
    assert open_files() == before
