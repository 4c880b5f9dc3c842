"""A model that the server sent is checked before training code receives it."""

import json

import numpy as np
import pytest

from fedloom.client.state import model_check
from fedloom.client.state.model_check import UnfitError, check_model
from fedloom.protocol.tensors.container import write_file


def test_a_header_that_is_too_long_is_refused(tmp_path, monkeypatch):
    """Before it is parsed, which takes many times its size in memory."""
    path = tmp_path / "model"
    write_file(path, {"w": np.zeros(2, np.float32)})
    check_model(path)
    monkeypatch.setattr(model_check, "MAX_HEADER_BYTES", 16)
    with pytest.raises(UnfitError, match="header of at most 16 bytes"):
        check_model(path)


@pytest.mark.parametrize("name", ["w\x1b[2J", "w\n", "w" * (model_check.MAX_NAME + 1)])
def test_names_that_are_not_printable_or_too_long_are_refused(tmp_path, name):
    """They are shown to the owner."""
    entry = json.dumps({name: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    path = tmp_path / "model"
    path.write_bytes(len(entry).to_bytes(8, "little") + entry + bytes(4))
    with pytest.raises(UnfitError, match="printable"):
        check_model(path)


def test_nan_is_found_anywhere(tmp_path):
    """Also in the last value of the last tensor; infinity is accepted."""
    path, values = tmp_path / "model", np.zeros(100_000, np.float32)
    values[-1] = np.inf
    write_file(path, {"a": np.zeros(1, np.float32), "w": values})
    check_model(path)
    values[-1] = np.nan
    write_file(path, {"a": np.zeros(1, np.float32), "w": values})
    with pytest.raises(UnfitError, match="'w'"):
        check_model(path)
