"""Advice on models that train badly with clipping and noise."""

from collections.abc import Iterable

_MEAN, _VARIANCE = "running_mean", "running_var"


def advice(tensors: Iterable[str]) -> list[str]:
    """Return what a private run of a model with these tensors should change, in sentences.

    Args:
        tensors: names of those that clients send.

    >>> advice(["norm.running_mean", "norm.running_var"])[0][:43]
    'norm is a batch normalisation: its running '
    >>> advice(["norm.weight", "norm.bias"])
    []
    """
    names = set(tensors)
    layers = sorted(
        name.removesuffix(_MEAN).rstrip(".") or "the model"
        for name in names
        if name.endswith(_MEAN) and name.removesuffix(_MEAN) + _VARIANCE in names
    )
    if not layers:
        return []
    which, are = (layers[0], "is a batch normalisation: its")
    if len(layers) > 1:
        which, are = f"{layers[0]} and {len(layers) - 1} more", "are batch normalisations: their"
    text = (
        f"{which} {are} running means and variances are clipped and noised like weights, and noise "
        "can make a variance negative. Use GroupNorm or LayerNorm, or keep them on the devices "
        "with personal.keep."
    )
    return [text]
