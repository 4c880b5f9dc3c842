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
from transformers.pytorch_utils import Conv1D

from fedloom.client.api import SliceOf
from fedloom.client.hf.beside import Beside, Extra
from fedloom.client.torch import modules
from fedloom.client.training.adapter_scales import check_scales
from fedloom.protocol.errors import UsageError
from fedloom.protocol.tensors import container
from fedloom.strategies import Adapters
from fedloom.strategies.adapters.settings import AdaptedLayer, layers

try:
    from peft import PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
except ModuleNotFoundError:  # it is needed for adapters alone
    PeftModel = None

Params = Mapping[str, NDArray[Any]]
_PREFIX = "base_model.model."
"""Of peft's names, before those of the base model."""


def has_adapters(model: nn.Module) -> bool:
    """Whether a model has peft's adapters."""
    return PeftModel is not None and isinstance(model, PeftModel)


def travelling(model: nn.Module) -> dict[str, Tensor]:
    """The tensors that travel, by name: peft's adapters, or trained parameters and buffers.

    They share memory with the model. Tied tensors are there once, and tensors of bool are not.
    """
    if has_adapters(model):
        name = adapter_of(model)
        return dict(
            get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False)
        )
    frozen = {name for name, param in model.named_parameters() if not param.requires_grad}
    names = modules.travelling(model) - frozen
    return {name: each for name, each in model.state_dict().items() if name in names}


def adapter_of(model: Any) -> str:
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


def load(
    model: nn.Module, params: Params, adapters: Adapters | None = None, beside: Beside | None = None
) -> None:
    """Copy a run's model into the model.

    Args:
        model: a client's.
        params: of the run, possibly with higher ranks and with differences to frozen weights.
        adapters: what the run averages; None: any, of the model's scale.
        beside: takes what has no place in the model's own adapters.

    Raises:
        UsageError: other names or shapes than the model's, or no place for more ranks; then nothing
            is copied.
    """
    mine = travelling(model)
    params, extras = _parted(params, mine, adapters)
    if extras and beside is None:
        raise UsageError(
            "Expected a model of this one's ranks, without differences to frozen weights, got one "
            f"that adds to {len(extras)} layers, such as {next(iter(extras)).name}. peft's folder "
            "of adapters has no place for it: use merged=True."
        )
    unknown, missing = sorted(params.keys() - mine.keys()), sorted(mine.keys() - params.keys())
    wrong = [n for n in mine.keys() & params.keys() if params[n].shape != tuple(mine[n].shape)]
    if unknown or missing or wrong:
        named = (unknown or missing or wrong)[0]
        raise UsageError(
            f"Expected the {len(mine)} tensors that this model trains, got {len(unknown)} unknown, "
            f"{len(missing)} missing and {len(wrong)} of another shape, such as {named!r}. Check "
            "that all devices configure peft alike, and start the run from a client's `initial`."
        )
    if beside is not None:
        if adapters is not None:
            beside.check_scale(adapters, layers(mine), needed=bool(extras))
        beside.put(extras)
    elif adapters is not None:
        check_scales(adapters)
    given = {n: torch.from_numpy(np.array(params[n])).to(mine[n]) for n in mine}
    if has_adapters(model):
        set_peft_model_state_dict(model, given, adapter_name=adapter_of(model))
        return
    with torch.no_grad():
        for name, tensor in mine.items():
            tensor.copy_(given[name])


def _parted(
    params: Params, mine: Mapping[str, Tensor], adapters: Adapters | None
) -> tuple[Params, dict[AdaptedLayer, Extra]]:
    """The tensors of this device's ranks, and what else the run's model adds to each layer."""
    kept, extras = dict(params), {}
    for layer in layers(mine):
        rest, a, b = kept.pop(layer.rest, None), kept.get(layer.a), kept.get(layer.b)
        more_a = more_b = None
        own = mine[layer.a].shape[0]
        if a is not None and b is not None and _differs_in_rank(a, b, mine[layer.a], mine[layer.b]):
            _check_rank(layer, own, len(a), adapters)
            kept[layer.a], kept[layer.b] = a[:own], b[:, :own]
            more_a, more_b = _tensor(a[own:]), _tensor(b[:, own:])
        if rest is not None or more_a is not None:
            extras[layer] = Extra(None if rest is None else _tensor(rest), more_a, more_b)
    return kept, extras


def _tensor(array: NDArray[Any]) -> Tensor:
    return torch.from_numpy(np.array(array, np.float32))


def _differs_in_rank(a: NDArray[Any], b: NDArray[Any], my_a: Tensor, my_b: Tensor) -> bool:
    """Whether factors differ from this device's in their rank, and in nothing else."""
    if not a.ndim == b.ndim == my_a.ndim == my_b.ndim == 2 or len(a) != b.shape[1]:
        return False
    outer = (a.shape[1], len(b)) == (my_a.shape[1], my_b.shape[0])
    return outer and len(a) != my_a.shape[0]


def _check_rank(layer: AdaptedLayer, own: int, whole: int, adapters: Adapters | None) -> None:
    lower = adapters is None or adapters.by_products
    if own < whole and lower:
        return
    allowed = f"at most {whole}" if lower else f"{whole}"
    raise UsageError(
        f"Expected rank {allowed} in {layer.name}, as the run has it, got {own}. Configure peft "
        f'with r = {whole}; adapters.aggregate = "product" or "stack" also takes lower ranks.'
    )


@contextmanager
def frozen(model: nn.Module, adapters: Adapters) -> Iterator[None]:
    """Leave the tensors out of the training meanwhile that the run does not train."""
    mine = travelling(model)
    stay = {mine[name].data_ptr() for name in adapters.frozen(mine)}
    found = [p for p in model.parameters() if p.requires_grad and p.data_ptr() in stay]
    for param in found:
        param.requires_grad_(False)
    try:
        yield
    finally:
        for param in found:
            param.requires_grad_(True)


def returned(
    model: nn.Module, received: Mapping[str, tuple[int, ...]]
) -> dict[str, "NDArray[Any] | SliceOf"]:
    """The trained tensors as they are sent: slices where the run's model has higher ranks.

    Args:
        model: a client's.
        received: the shapes of the run's model.
    """
    return {
        name: value
        if value.shape == received[name]
        else SliceOf(value, tuple((0, size) for size in value.shape))
        for name, value in arrays(model).items()
    }


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
            found.update(f"{name} scaling {scales[adapter_of(model)]!r}\n".encode())
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
        UsageError: the file's tensors are not the model's; or, not merged, they have more than
            peft's adapters hold.
    """
    adapted = merged and has_adapters(model)
    beside = Beside(model, adapter_of(model)) if adapted else None
    load(model, container.read_params(Path(file)), beside=beside)
    kept: Any = model
    if beside is not None:
        extras, scales = beside.extras, {each: beside.scale(each) for each in beside.extras}
        beside.put({})
        kept = kept.merge_and_unload()
        for layer, extra in extras.items():
            _merge(kept.get_submodule(layer.name.removeprefix(_PREFIX)), extra, scales[layer])
    kept.save_pretrained(str(folder))


def _merge(module: nn.Module, extra: Extra, scale: float) -> None:
    """Add to a layer's weight; transformers' Conv1D has it transposed."""
    weight: Any = module.weight
    added = scale * extra.weight()
    with torch.no_grad():
        weight += (added.T if isinstance(module, Conv1D) else added).to(weight.dtype)
