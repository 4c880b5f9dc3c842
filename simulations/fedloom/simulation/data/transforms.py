"""Transforms by name, for settings as text.

[data]
source = "cifar10"
transform = [
{ name = "crop", padding = 4 },
"flip",
{ name = "normalise", mean = [0.49, 0.48, 0.45], deviation = [0.25, 0.24, 0.26] },
]
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from fedloom.cli.common.load_code import find
from fedloom.client.torch import augment
from fedloom.protocol.errors import UsageError
from fedloom.protocol.settings import call, lookup, named
from fedloom.protocol.user_code import summarised

TRANSFORMS: Final[Mapping[str, Callable[..., augment.Transform]]] = {
    "crop": augment.Crop,
    "flip": augment.Flip,
    "normalise": augment.Normalise,
    "normalize": augment.Normalise,
    "noise": augment.Noise,
    "jitter": augment.Jitter,
    "cutout": augment.Cutout,
}


def pipeline(listed: Any) -> augment.Pipeline | None:
    """Transforms in order.

    >>> print(pipeline([{"name": "crop", "padding": 4}, "flip"]))
    Crop(size=None, padding=4), Flip(probability=0.5)

    Args:
        listed: names, mappings of a `name` and settings, transforms, and functions of one example;
            a name is a key of `TRANSFORMS`, or `file.py:NAME` of a function or of a Transform; a
            Transform class gets the settings. None or an empty list for no transform.

    Raises:
        UsageError: a name or a setting is unknown or out of range.
    """
    if listed is None or (isinstance(listed, list | tuple) and not listed):
        return None
    if isinstance(listed, augment.Pipeline):
        return listed
    if not isinstance(listed, list | tuple):
        raise UsageError(
            'Expected data.transform as a list, such as [{ name = "crop", padding = 4 }, "flip"], '
            f"got {listed!r}."
        )
    made = augment.Pipeline.of([_step(entry) for entry in listed])
    return _FromSettings(made.steps, tuple(listed))


@dataclass(frozen=True, slots=True)
class _FromSettings(augment.Pipeline):
    """Pickled as its settings: another process cannot import a file by its module's name."""

    listed: tuple[Any, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        return pipeline, (list(self.listed),)


def _step(entry: Any) -> augment.Step:
    if not isinstance(entry, str | Mapping):
        step: augment.Step = entry
        return step
    given = {"name": entry} if isinstance(entry, str) else entry
    name, settings = named(given, "data.transform")
    if ":" not in name:
        kind = lookup("a transform, or FILE.py:NAME", name, TRANSFORMS)
        return call(kind, settings, owner=f"the transform {name!r}", table="data.transform")
    found: Any = find(name)
    if isinstance(found, type) and issubclass(found, augment.Transform):
        try:
            made: augment.Transform = found(**settings)
        except TypeError as error:
            raise UsageError(f"The transform {name} cannot be made: {summarised(error)}.") from None
        return made
    if settings:
        raise UsageError(
            f"Expected no settings for the function {name}, got {sorted(settings)}. Make it a "
            "subclass of fedloom.client.torch.augment.Transform."
        )
    own: augment.Step = found
    return own
