"""The tensors of a transformers model that travel: peft's adapters, or what is trained.

Invariant: the names are those of peft's own files, so that a run's model is an adapter that
`PeftModel.from_pretrained` loads.
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedloom.client.torch import modules
from fedloom.protocol.errors import UsageError
from fedloom.protocol.tensors import container

try:
    from peft import PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
except ModuleNotFoundError:  # it is needed for adapters alone
    PeftModel = None

Params = Mapping[str, NDArray[Any]]


def has_adapters(model: nn.Module) -> bool:
    """Whether a model has peft's adapters."""
    return PeftModel is not None and isinstance(model, PeftModel)


def travelling(model: nn.Module) -> dict[str, Tensor]:
    """The tensors that travel, by name: peft's adapters, or trained parameters and buffers.

    They share memory with the model. Tied tensors are there once, and tensors of bool are not.
    """
    if has_adapters(model):
        name = _adapter(model)
        return dict(
            get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False)
        )
    frozen = {name for name, param in model.named_parameters() if not param.requires_grad}
    names = modules.travelling(model) - frozen
    return {name: each for name, each in model.state_dict().items() if name in names}


def _adapter(model: Any) -> str:
    """Name of the one active adapter, such as `default`."""
    names = list(model.active_adapters)
    if len(names) != 1:
        raise UsageError(
            f"Expected one active adapter, got {', '.join(names) or 'none'}. Use set_adapter."
        )
    return str(names[0])


def trained_here_alone(model: nn.Module) -> list[str]:
    """Names of parameters that are trained and do not travel: they would differ by device."""
    sent = {each.data_ptr() for each in travelling(model).values()}
    params = model.named_parameters()
    return [name for name, p in params if p.requires_grad and p.data_ptr() not in sent]


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are trained, by the names under which they travel."""
    names = {each.data_ptr(): name for name, each in travelling(model).items()}
    return {names[p.data_ptr()]: p for p in model.parameters() if p.requires_grad}


@contextmanager
def unsent_buffers_kept(model: nn.Module) -> Iterator[None]:
    """Restores buffers that do not travel, such as a base model's statistics of BatchNorm.

    A training would change them on this device alone.
    """
    sent = {each.data_ptr() for each in travelling(model).values()}
    buffers = [each for each in model.buffers() if each.data_ptr() not in sent]
    before = [each.clone() for each in buffers]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, values in zip(buffers, before, strict=True):
                buffer.copy_(values)


def arrays(model: nn.Module) -> dict[str, NDArray[Any]]:
    """Copies of the tensors that travel; bfloat16 as float32."""
    return {name: np.array(modules.array_of(each)) for name, each in travelling(model).items()}


def load(model: nn.Module, params: Params) -> None:
    """Copy a run's model into the model.

    Raises:
        UsageError: other names or shapes than the model's; then nothing is copied.
    """
    mine = travelling(model)
    unknown, missing = sorted(params.keys() - mine.keys()), sorted(mine.keys() - params.keys())
    wrong = [n for n in mine.keys() & params.keys() if params[n].shape != tuple(mine[n].shape)]
    if unknown or missing or wrong:
        named = (unknown or missing or wrong)[0]
        raise UsageError(
            f"Expected the {len(mine)} tensors that this model trains, got {len(unknown)} unknown, "
            f"{len(missing)} missing and {len(wrong)} of another shape, such as {named!r}. Check "
            "that all devices configure peft alike, and start the run from a client's `initial`."
        )
    given = {n: torch.from_numpy(np.array(params[n])).to(mine[n]) for n in mine}
    if has_adapters(model):
        set_peft_model_state_dict(model, given, adapter_name=_adapter(model))
        return
    with torch.no_grad():
        for name, tensor in mine.items():
            tensor.copy_(given[name])


def base_digest(model: nn.Module) -> str:
    """SHA-256 of what stays on the device.

    It is over the names, dtypes, shapes and bytes of all other tensors, and over the adapters'
    scales, which the configuration of peft has (`lora_alpha`). Devices whose digests are equal have
    the same base model, and the same adapters change it alike. A run's `config.base` names it.
    """
    own = {each.data_ptr() for each in travelling(model).values()}
    found = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        if tensor.data_ptr() in own:
            continue
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        if flat.numel():
            found.update(flat.view(torch.uint8).numpy().data)
    for name, module in model.named_modules():
        scales = getattr(module, "scaling", None)
        if isinstance(scales, dict) and has_adapters(model):
            found.update(f"{name} scaling {scales[_adapter(model)]!r}\n".encode())
    return found.hexdigest()


def save_pretrained(
    model: nn.Module, file: str | Path, folder: str | Path, *, merged: bool = False
) -> None:
    """Write a run's model in the form of `from_pretrained`.

    Args:
        model: a client's, with its base model; takes the values of the file.
        file: safetensors, from `fedloom model export`.
        folder: for `PeftModel.from_pretrained` (adapters), or for the model class's own.
        merged: merge adapters into the base model. The model has no adapters afterwards.

    Raises:
        UsageError: the file's tensors are not the model's.
    """
    load(model, container.read_params(Path(file)))
    kept: Any = model
    if merged and has_adapters(model):
        kept = kept.merge_and_unload()
    kept.save_pretrained(str(folder))
