"""The parts of a masked body's header: what the body covers, without values.

A tensor that is not among them is covered whole. The class of the session has a digest of them.
"""

from collections.abc import Mapping, Sequence

from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.masking.encoding import Slices
from fedloom.protocol.v1 import fleet_pb2
from fedloom.strategies.exact.coverage import Slice
from fedloom.strategies.exact.partial import Key, TensorSpec


def to_parts(slices: Slices) -> list[fleet_pb2.Part]:
    """Return the parts of slices, by group and name."""
    return [
        fleet_pb2.Part(
            group=key[0],
            tensor=key[1],
            slice=fleet_pb2.Slice(
                ranges=[
                    fleet_pb2.Range(start=start, stop=stop) for start, stop in slices[key].ranges
                ]
            ),
        )
        for key in sorted(slices)
    ]


def from_parts(parts: Sequence[fleet_pb2.Part]) -> Slices:
    """Return the slices of `to_parts`.

    Raises:
        Refusal: MALFORMED, other parts, or a tensor twice.
    """
    found = {
        (part.group, part.tensor): Slice(tuple((r.start, r.stop) for r in part.slice.ranges))
        for part in parts
    }
    if to_parts(found) != list(parts):
        raise Refusal(
            Code.MALFORMED,
            "Expected the slices of a masked update by group and name, without values, got others.",
        )
    return found


def narrowed(specs: Mapping[Key, TensorSpec], slices: Slices) -> dict[Key, TensorSpec]:
    """Return what an update covers of these tensors, each as a tensor of its own.

    Raises:
        Refusal: WRONG_SHAPE or UNKNOWN_TENSOR, a slice is empty or of no part of these tensors.
    """
    found = dict(specs)
    for key, slice_ in slices.items():
        if key not in specs:
            raise Refusal(
                Code.UNKNOWN_TENSOR,
                f"Expected slices of the tensors of a masked update, got one of {key[1][:80]!r}.",
            )
        try:
            slice_.check(specs[key].shape)
        except ValueError as error:
            raise Refusal(Code.WRONG_SHAPE, f"{key[1]}: {error}") from None
        if 0 in slice_.shape:
            raise Refusal(Code.WRONG_SHAPE, f"{key[1]}: Expected a slice with values, got none.")
        found[key] = TensorSpec(shape=slice_.shape, dtype=specs[key].dtype)
    return found
