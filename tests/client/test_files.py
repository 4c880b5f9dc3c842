"""Model files, for clients that have only numpy."""

import numpy as np
import pytest
import safetensors.numpy

from fedloom.client import load_file, save_file
from fedloom.protocol.errors import IntegrityError


def _params():
    return {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.array(7, np.int64)}


def test_a_saved_model_is_loaded(tmp_path):
    """With its names, shapes, dtypes and values."""
    save_file(_params(), tmp_path / "model.safetensors")
    loaded = load_file(str(tmp_path / "model.safetensors"))
    assert loaded.keys() == _params().keys()
    for name, value in _params().items():
        assert loaded[name].dtype == value.dtype
        np.testing.assert_array_equal(loaded[name], value)


def test_the_files_are_safetensors(tmp_path):
    """The reference library reads these files, and this package reads its files."""
    save_file(_params(), tmp_path / "ours")
    theirs = safetensors.numpy.load_file(tmp_path / "ours")
    np.testing.assert_array_equal(theirs["w"], _params()["w"])
    safetensors.numpy.save_file(_params(), tmp_path / "theirs")
    np.testing.assert_array_equal(load_file(tmp_path / "theirs")["w"], _params()["w"])


def test_loaded_arrays_are_copies(tmp_path):
    save_file(_params(), tmp_path / "model")
    load_file(tmp_path / "model")["w"] += 1
    np.testing.assert_array_equal(load_file(tmp_path / "model")["w"], _params()["w"])


def test_a_truncated_file_is_refused(tmp_path):
    save_file(_params(), tmp_path / "model")
    (tmp_path / "cut").write_bytes((tmp_path / "model").read_bytes()[:-1])
    with pytest.raises(IntegrityError, match="bytes"):
        load_file(tmp_path / "cut")
