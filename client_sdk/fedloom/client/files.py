"""Models as files: what a run begins with, and what `fedloom model export` writes.

The files are safetensors (https://huggingface.co/docs/safetensors), and the functions are called
and behave as those of `safetensors.numpy`; a device need not install that library for them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from fedloom.client.api import Params
from fedloom.protocol.tensors import container


def save_file(params: Mapping[str, NDArray[Any]], path: str | Path) -> None:
    """Write arrays to a safetensors file, which appears whole or not at all.

    Args:
        params: arrays by name.
        path: replaced if it exists.

    Raises:
        UsageError: the format has no such dtype.
    """
    container.write_file(Path(path), params)


def load_file(path: str | Path) -> Params:
    """Read the arrays of a safetensors file.

    Returns:
        Arrays by name in their shapes, yours to change; bfloat16 as float32.

    Raises:
        IntegrityError: it is not a whole safetensors file.
    """
    return container.read_params(Path(path), writable=True)
