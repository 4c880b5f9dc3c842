"""Conversion of tensors between modules, numpy and files."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import nn

from fedloom.client.torch import load, load_file, parameters, save_file
from fedloom.protocol.errors import IntegrityError, UsageError


class _Mixed(nn.Module):
    """One tensor of each kind."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2, 3))
        self.rough = nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("mask", torch.zeros(2, dtype=torch.bool))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)


def _values():
    return {
        "weight": np.arange(6, dtype=np.float32).reshape(2, 3),
        "rough": np.array([1.0, -2.5, 3.0], dtype=np.float32),
        "count": np.array(7),
        "mask": np.array([True, False]),
    }


def _same(a, b):
    return a.keys() == b.keys() and all(
        np.array_equal(a[name], b[name]) and a[name].dtype == b[name].dtype for name in a
    )


def test_loaded_tensors_survive_a_round_trip():
    """Parameters and persistent buffers, each in its dtype; bfloat16 as float32."""
    module = _Mixed()
    load(module, _values())
    assert _same(parameters(module), _values())
    assert module.rough.dtype == torch.bfloat16


def test_arrays_share_the_modules_memory():
    """No copy is made."""
    module = _Mixed()
    weight = parameters(module)["weight"]
    with torch.no_grad():
        module.weight[0, 0] = 5
    assert weight[0, 0] == 5


def test_read_only_arrays_are_loaded_without_a_warning():
    """Such as arrays that are mapped from a file."""
    values = _values()
    for value in values.values():
        value.flags.writeable = False
    load(_Mixed(), values)


def test_loaded_values_are_copied():
    """Training must not change the received arrays."""
    module, values = _Mixed(), _values()
    load(module, values)
    with torch.no_grad():
        module.weight.zero_()
        module.rough.zero_()
    assert _same(values, _values())


@given(arrays(np.float32, (3,), elements=st.floats(width=32)))
def test_bfloat16_rounds_to_the_nearest(values):
    """As torch does, for all bits."""
    module = nn.Linear(3, 1, bias=False).to(torch.bfloat16)
    load(module, {"weight": values.reshape(1, 3)})
    expected = torch.from_numpy(values).to(torch.bfloat16)
    assert torch.equal(module.weight.view(torch.int16)[0], expected.view(torch.int16))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"other": np.zeros(1)}, r"1 \(other\) unknown to it and none missing"),
        ({"weight": None, "count": None}, r"none unknown to it and 2 \(count, weight\) missing"),
        ({"weight": np.zeros((3, 2), np.float32)}, r"\(2, 3\) for 'weight', got \(3, 2\)"),
        ({"weight": np.zeros((2, 3), np.int64)}, "torch.float32 for 'weight', got int64"),
        ({"count": np.array(1.5)}, "torch.int64 for 'count', got float64"),
        ({"mask": np.zeros(2, np.uint8)}, "torch.bool for 'mask', got uint8"),
    ],
)
def test_a_mismatch_is_refused_and_nothing_is_copied(changes, message):
    """Names, shapes and kinds of number are checked first."""
    module = _Mixed()
    before = {name: value.copy() for name, value in parameters(module).items()}
    values = {n: v for n, v in {**_values(), **changes}.items() if v is not None}
    with pytest.raises(UsageError, match=message):
        load(module, values)
    assert _same(parameters(module), before)


def test_partial_loading():
    """Missing tensors keep their values."""
    module = _Mixed()
    load(module, {"count": np.array(3)}, partial=True)
    assert module.count == 3
    assert not module.weight.any()


def test_a_dtype_that_numpy_lacks_is_refused():
    """The error names the dtype."""
    module = nn.Linear(1, 1).to(torch.float8_e5m2)
    with pytest.raises(UsageError, match="Float8_e5m2"):
        parameters(module)


def test_a_saved_module_is_read_by_fedloom_and_safetensors(tmp_path):
    """In the module's dtypes."""
    module = _Mixed()
    load(module, _values())
    save_file(module, tmp_path / "model.safetensors")
    other = _Mixed()
    load_file(other, tmp_path / "model.safetensors")
    assert _same(parameters(other), _values())
    reference = pytest.importorskip("safetensors.torch").load_file(tmp_path / "model.safetensors")
    assert reference["rough"].dtype == torch.bfloat16
    assert all(torch.equal(reference[name], value) for name, value in module.state_dict().items())


def test_an_invalid_file_is_refused(tmp_path):
    """A damaged file and a file with other tensors raise different errors."""
    (tmp_path / "text").write_text("hello")
    with pytest.raises(IntegrityError):
        load_file(_Mixed(), tmp_path / "text")
