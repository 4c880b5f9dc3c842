"""Arrays that rest in files: what they are, and what they outlive."""

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


def test_they_are_what_reading_the_file_gives(tmp_path):
    """Of every dtype; bfloat16 widened."""
    path = tmp_path / "a"
    write_file(path, arrays(), {"bf": "BF16"})
    expected = read_params(path)
    for name, values in stored_params(path).items():
        assert (values.shape, values.dtype) == (expected[name].shape, expected[name].dtype)
        np.testing.assert_array_equal(np.asarray(values), expected[name])


def test_they_outlive_their_file_and_are_written_to_another(tmp_path):
    """A file of the same name is another file."""
    path, copy = tmp_path / "a", tmp_path / "b"
    digest = write_file(path, arrays())
    found = stored_params(path)
    write_file(path, {"w": np.zeros(1)})
    path.unlink()
    assert write_file(copy, found) == digest


def test_a_piece_ends_where_its_array_does(tmp_path):
    """What lies behind it is another's."""
    path = tmp_path / "a"
    write_file(path, {"a": np.arange(5.0), "b": np.ones(5)})
    np.testing.assert_array_equal(stored_params(path)["a"].piece(3, 99), [3.0, 4.0])


def test_a_file_that_was_cut_meanwhile_is_told(tmp_path):
    """Not taken for zeros."""
    path = tmp_path / "a"
    write_file(path, {"a": np.arange(5.0)})
    found = stored_params(path)
    os.truncate(path, path.stat().st_size - 8)
    with pytest.raises(IntegrityError, match="got its end"):
        np.asarray(found["a"])


def open_files():
    """Of this process, where the system tells; 0 elsewhere."""
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.is_dir() else 0


def test_what_is_scratch_has_no_name_and_goes_with_its_arrays(tmp_path):
    """Arrays are what was put there, zeros elsewhere; nothing of them is left."""
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
