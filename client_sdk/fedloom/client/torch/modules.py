"""A module's tensors as numpy arrays by name, and back.

The names are those of `state_dict`: parameters and persistent buffers. numpy has no bfloat16, so
these tensors become float32, which is exact, and are rounded when they are loaded.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedloom.protocol.errors import UsageError
from fedloom.protocol.tensors import container


def everything(_name: str) -> bool:
    """Choose every tensor."""
    return True


def parameters(
    module: nn.Module, choose: Callable[[str], bool] = everything
) -> dict[str, NDArray[Any]]:
    """A module's parameters and buffers by name.

    Args:
        module: on any device.
        choose: selects names.

    Returns:
        Arrays in the tensors' shapes and dtypes (bfloat16 as float32). Arrays of a module in main
        memory share its memory, so they change with the module; copy them if necessary.
    """
    return {name: array_of(value) for name, value in module.state_dict().items() if choose(name)}


def twins(module: nn.Module) -> dict[str, str]:
    """The further names of tied tensors, such as of an output layer with the embedding's weights.

    Returns:
        Further name → first name; both are in the module's `state_dict`.
    """
    first: dict[tuple[Any, ...], str] = {}
    found = {}
    for name, tensor in module.state_dict().items():
        if tensor.numel() and tensor.data_ptr():
            place = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
            if place in first:
                found[name] = first[place]
            first.setdefault(place, name)
    return found


def travelling(module: nn.Module) -> set[str]:
    """Names of the tensors that a run's model has: tied ones once, and none of bool.

    Tensors of bool have no mean, so they stay on the device.
    """
    state = module.state_dict()
    return {name for name, each in state.items() if each.dtype != torch.bool} - twins(module).keys()


def load(module: nn.Module, params: Mapping[str, NDArray[Any]], *, partial: bool = False) -> None:
    """Copy arrays into the parameters and buffers of the same names.

    Args:
        module: on any device.
        params: arrays by name; values are rounded to a tensor's precision, but not to integers.
        partial: allow missing tensors, which keep their values.

    Raises:
        UsageError: an unknown or missing name, another shape or kind of number, or two values of
            tied tensors. Then nothing is copied.
    """
    state: dict[str, Tensor] = module.state_dict()
    unknown = sorted(params.keys() - state.keys())
    missing = [] if partial else sorted(travelling(module) - params.keys())
    if unknown or missing:
        raise UsageError(
            f"Expected the tensors of {type(module).__name__}, "
            f"got {_some(unknown)} unknown to it and {_some(missing)} missing. "
            "Check that this model and the run's model are built alike."
        )
    for name, array in params.items():
        _check(name, state[name], array)
    for name, first in twins(module).items():
        _check_tied(first, name, params)
    for name, array in params.items():
        _copy(state[name], array)


def save_file(module: nn.Module, path: str | Path) -> None:
    """Write a module's tensors as safetensors, atomically, in the module's own dtypes."""
    narrow = {n: "BF16" for n, t in module.state_dict().items() if t.dtype == torch.bfloat16}
    container.write_file(Path(path), parameters(module), narrow)


def load_file(module: nn.Module, path: str | Path) -> None:
    """Load a safetensors file, such as `fedloom model export` writes, into a module.

    Raises:
        IntegrityError: it is not a safetensors file.
        UsageError: its tensors are not the module's.
    """
    load(module, container.read_params(Path(path)))


def array_of(tensor: Tensor) -> NDArray[Any]:
    """A tensor's values; shares memory with a tensor in main memory; bfloat16 as float32."""
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()
    try:
        return np.asarray(tensor.cpu().numpy())
    except TypeError as error:
        raise UsageError(f"numpy has no such dtype: {error}.") from error


def _copy(target: Tensor, array: NDArray[Any]) -> None:
    with torch.no_grad():
        if target.device.type == "cpu" and target.dtype != torch.bfloat16:
            # Directly into the module's memory; from_numpy would warn about read-only arrays.
            np.copyto(target.detach().numpy(), array, casting="same_kind")
        else:
            target.copy_(torch.from_numpy(np.array(array)))


def _check(name: str, target: Tensor, array: NDArray[Any]) -> None:
    if array.shape != tuple(target.shape):
        raise UsageError(
            f"Expected shape {tuple(target.shape)} for {name!r}, got {array.shape}. "
            "Check that this model and the run's model are built alike."
        )
    kind = "f" if target.is_floating_point() else "b" if target.dtype == torch.bool else "iu"
    if array.dtype.kind not in kind:
        raise UsageError(f"Expected {target.dtype} for {name!r}, got {array.dtype}.")


def _check_tied(first: str, name: str, params: Mapping[str, NDArray[Any]]) -> None:
    if first in params and name in params and not np.array_equal(params[first], params[name]):
        raise UsageError(
            f"Expected equal values of {first!r} and {name!r}, which are one tensor of this model, "
            "got two. Start the run from a model that has it once, as TorchClient.initial() does."
        )


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
    return f"{len(names)} ({shown})" if names else "none"
