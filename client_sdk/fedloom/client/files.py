"""Model files: the initial model of a run, and the output of `fedloom model export`.

The format is safetensors (https://huggingface.co/docs/safetensors). The functions have the names
and behaviour of `safetensors.numpy`, without requiring that library.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from fedloom.client.api import Params
from fedloom.protocol.tensors import container


def save_file(params: Mapping[str, NDArray[Any]], path: str | Path) -> None:
    """Write arrays to a safetensors file, atomically.

    Args:
        params: arrays by name.
        path: replaced if it exists.

    Raises:
        UsageError: the format does not support a dtype.
    """
    container.write_file(Path(path), params)


def load_file(path: str | Path) -> Params:
    """Read the arrays of a safetensors file.

    Returns:
        Arrays by name in their shapes, writable; bfloat16 as float32.

    Raises:
        IntegrityError: the file is not a complete safetensors file.
    """
    return container.read_params(Path(path), writable=True)
