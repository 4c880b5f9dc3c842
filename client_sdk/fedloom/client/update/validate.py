"""Checks of what training code returned, before it is used.

The agent refuses an update at the first error; `fedloom.client.testing` lists all of them, with the
same messages.

Invariant: a result that passes has names for its tensors and metrics, numbers where needed, and
tensors in the model's shapes. Whether numbers are finite is checked where they are used.
"""

from collections.abc import Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedloom.client.api import MaskOf, SliceOf, Update, Weighting
from fedloom.protocol.errors import UsageError
from fedloom.strategies import Coverage, Full, Mask, Slice
from fedloom.strategies.exact.lazy_arrays import Box, Chosen, Pieces, Values

Returned: TypeAlias = "NDArray[Any] | SliceOf | MaskOf"
Gravity: TypeAlias = Literal["fault", "doubt"]

MOST_EXAMPLES = 2**63 - 1
_NO_NUMBERS = frozenset("OSUMmc")
"""Kinds of numpy dtypes that no tensor of a model has: objects, text, times, complex numbers."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem in what training code returned.

    Attributes:
        check: name of the check, such as `shapes`; `check(…, ignore=[…])` skips it.
        sentence: what is wrong and what to do.
        weight: a fault loses rounds; a doubt may be intended.
    """

    check: str
    sentence: str
    weight: Gravity = "fault"

    def __str__(self) -> str:
        """The sentence."""
        return self.sentence


class ReturnedError(UsageError):
    """Training code returned something invalid.

    Attributes:
        finding: the problem and its check.
    """

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.sentence)
        self.finding = finding

    def __reduce__(self) -> tuple[type["ReturnedError"], tuple[Finding]]:
        """Pickle by the finding, not by the message, so that worker processes can pass it on."""
        return type(self), (self.finding,)


def check(findings: Iterable[Finding]) -> None:
    """Raise the first finding, if there is one.

    Raises:
        ReturnedError: with the first finding.
    """
    for finding in findings:
        raise ReturnedError(finding)


# ---- results ---------------------------------------------------------------------------------


def as_update(trained: object) -> Update:
    """Convert the result of `train` to an `Update`.

    Raises:
        ReturnedError: it is neither an `Update` nor its three parts, or has no tensors by name.
    """
    if isinstance(trained, tuple) and len(trained) == 3:
        trained = Update(*trained)
    if not isinstance(trained, Update):
        raise _wrong(
            "returns",
            "Expected train to return (params, num_examples, metrics) or an Update, got "
            f"{_kind(trained)}. {_return_it('train', trained, 'End it with such a return.')}",
        )
    if not isinstance(trained.params, Mapping):
        raise _wrong(
            "returns",
            "Expected train to return params as a mapping of names to arrays, got "
            f"{_kind(trained.params)}. Return a dict like the one that it received.",
        )
    return trained


def as_measured(returned: object) -> tuple[Any, Any]:
    """The result of `evaluate`: the number of examples and metrics, not checked yet.

    Raises:
        ReturnedError: it is not a pair.
    """
    if not (isinstance(returned, tuple) and len(returned) == 2):
        raise _wrong(
            "evaluate",
            f"Expected evaluate to return (num_examples, metrics), got {_kind(returned)}. "
            + _return_it("evaluate", returned, "Return the number of examples and a dict."),
        )
    return returned


def of_update(update: Update, weighting: Weighting) -> Iterator[Finding]:
    """Problems of an update, except its tensors."""
    yield from _of_count(update, weighting)
    if weighting is Weighting.CLIENT and not _is_weight(update.weight):
        yield Finding(
            "weight",
            f"Expected a weight above 0 from train, got {_shown(update.weight)}: this run weights "
            "by client. Return an Update that has one.",
        )
    yield from of_metrics(update.metrics, "train")


def of_evaluation(num_examples: object, metrics: object) -> Iterator[Finding]:
    """Problems of the result of `evaluate`."""
    if not _is_count(num_examples):
        yield Finding(
            "evaluate",
            "Expected num_examples from evaluate as a whole number from 0 to 2^63 - 1, got "
            f"{_shown(num_examples)}. Return how many examples it measured.",
        )
    yield from of_metrics(metrics, "evaluate")


def _of_count(update: Update, weighting: Weighting) -> Iterator[Finding]:
    count = update.num_examples
    if not _is_count(count):
        yield Finding(
            "weight",
            "Expected num_examples from train as a whole number from 0 to 2^63 - 1, got "
            f"{_shown(count)}. Return how many examples it trained on.",
        )
    elif count == 0 and weighting is Weighting.EXAMPLES:
        yield Finding(
            "weight",
            "Expected num_examples from train above 0, got 0: this run weights by examples. Return "
            "how many it trained on; if there are none, let can_train return False.",
        )


def of_metrics(metrics: object, source: str) -> Iterator[Finding]:
    """Problems of metrics."""
    if not isinstance(metrics, Mapping):
        yield Finding(
            "metrics",
            f"Expected metrics from {source} as a mapping of names to numbers, got "
            f"{_kind(metrics)}. Return a dict of floats, {{}} if there are none.",
        )
        return
    for name, value in metrics.items():
        if not (isinstance(name, str) and name.isprintable()):
            yield Finding(
                "metrics",
                f"Expected names of metrics from {source} as printable text, got {_shown(name)}. "
                "Use text in one line.",
            )
        elif number(value) is None:
            yield Finding(
                "metrics",
                f"Expected metric {name!r} from {source} as one number, got {_shown(value)}. Turn "
                "it into one by float(…).",
            )


# ---- tensors ---------------------------------------------------------------------------------


def covered(
    name: str, value: Returned, model: Mapping[str, Values]
) -> tuple[Coverage, Values, Values]:
    """The coverage of a returned value, its new values and the model's under it.

    Args:
        name: of the tensor.
        value: what was returned for it.
        model: received tensors by name.

    Raises:
        ReturnedError: the model lacks the tensor, or the values are not numbers or have another
            shape.
    """
    if name not in model:
        known = ", ".join(list(model)[:8])
        raise _wrong(
            "names",
            f"Expected tensors of the model ({known}{', …' * (len(model) > 8)}), got {name!r} from "
            "train. Leave it out, or begin the run from a model that has it.",
        )
    old = model[name]
    values = np.asarray(value.values if isinstance(value, SliceOf | MaskOf) else value)
    _check_numbers(name, values, old)
    match value:
        case SliceOf(_, ranges):
            box = Slice(tuple((int(a), int(b)) for a, b in ranges))
            try:
                box.check(old.shape)
            except ValueError as error:
                raise _wrong("shapes", f"{error} It is for {name!r} from train.") from None
            _check_shape(f"slice of {name!r}", values.shape, box.shape)
            if isinstance(old, Pieces):
                return box, values, Box(old, box.ranges)
            return box, values, old[tuple(slice(a, b) for a, b in box.ranges)]
        case MaskOf(_, mask):
            _check_shape(repr(name), values.shape, old.shape)
            _check_shape(f"mask of {name!r}", np.shape(mask), old.shape)
            bits = np.ascontiguousarray(mask, dtype=np.bool_)
            if isinstance(old, Pieces):
                flat = bits.reshape(-1)
                return Mask(flat), Chosen(values, flat), Chosen(old, flat)
            return Mask(bits.reshape(-1)), values[bits], old[bits]
        case _:
            _check_shape(repr(name), values.shape, old.shape)
            return Full(), values, old


def _check_numbers(name: str, values: NDArray[Any], old: Values) -> None:
    dtype = values.dtype
    strange = dtype.kind in _NO_NUMBERS or dtype.type is np.void
    if strange or (dtype.kind == "b" and old.dtype != dtype):
        raise _wrong(
            "dtypes",
            f"Expected real numbers for {name!r} from train, got an array of {dtype}. Return it as "
            f"{old.dtype}.",
        )


def _check_shape(what: str, got: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if got != expected:
        raise _wrong(
            "shapes",
            f"Expected shape {expected} for {what} from train, got {got}. Return it in the shape "
            "that it came in, or as a SliceOf or MaskOf.",
        )


# ---- numbers ---------------------------------------------------------------------------------


def weight_of(update: Update, weighting: Weighting) -> float:
    """The weight of a checked update."""
    match weighting:
        case Weighting.EXAMPLES:
            return float(update.num_examples)
        case Weighting.UNIFORM:
            return 1.0
        case Weighting.CLIENT:
            assert update.weight is not None
            return float(update.weight)


def number(value: object) -> float | None:
    """A number, also from a tensor of one value; None if it is neither."""
    if isinstance(value, str | bytes):
        return None
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None


def _is_count(value: object) -> bool:
    found = None if isinstance(value, bool | np.bool_) else number(value)
    return (
        found is not None and isfinite(found) and found.is_integer() and 0 <= found <= MOST_EXAMPLES
    )


def _is_weight(value: object) -> bool:
    found = None if isinstance(value, bool | np.bool_) else number(value)
    return found is not None and isfinite(found) and found > 0


def _wrong(check: str, sentence: str) -> ReturnedError:
    return ReturnedError(Finding(check, sentence))


def _kind(value: object) -> str:
    name = type(value).__name__
    return f"{name} of {len(value)}" if isinstance(value, tuple) else name


def _return_it(method: str, returned: object, remedy: str) -> str:
    """What to do about a wrong result of a method."""
    if not isinstance(returned, Coroutine):
        return remedy
    returned.close()  # else Python warns that it was never awaited
    return f"Write `def {method}` instead of `async def {method}`."


def _shown(value: object) -> str:
    return f"{value!r}"[:80]
