"""Encoded parts of an update: encoding by the client, checks and decoding by the server.

Only whole tensors and boxes of float32 are encoded, and only if that makes them smaller. Client,
server and simulator encode and decode with the functions here, so the same update has the same bits
in all three.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from numpy.typing import NDArray

from fedloom.protocol.codecs import (
    ArrayInfo,
    Codec,
    Encoded,
    Inspector,
    codec,
    decode,
    decoded,
    stream,
)
from fedloom.protocol.codecs.base import Floats
from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.tensors.container import Layout, TensorEntry, dtype_name
from fedloom.protocol.v1 import fleet_pb2
from fedloom.strategies.exact.lazy_arrays import Values, pieces_of
from fedloom.strategies.setting_checks import misfit

Shape = tuple[int, ...]
T = TypeVar("T")


# ---- what both sides know ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """The encoding of a run's updates.

    Attributes:
        codec: that encodes them.
        error_feedback: the client remembers the loss of encoding and adds it to its next update
            (Seide et al. 2014; Karimireddy et al. 2019, https://arxiv.org/abs/1901.09847).

    Raises:
        ValueError: error feedback would diverge with this codec.
    """

    codec: Codec
    error_feedback: bool

    def __post_init__(self) -> None:
        if self.error_feedback and not self.codec.contracts:
            raise ValueError(
                f"Expected no error_feedback with the codec {self.codec.name}, got true: a value "
                "waits 1 / fraction rounds on average, and local training adds to what it waits "
                "with. Leave it out, or take top_k."
            )

    def message(self) -> fleet_pb2.Compression:
        """The message in a task."""
        return describe(self.codec, error_feedback=self.error_feedback)

    @property
    def remembers(self) -> bool:
        """Whether clients keep memory from round to round."""
        return self.error_feedback or self.codec.remembers


def scheme(
    values: Mapping[str, Any], table: str = "compression", *, sums: bool = False
) -> Scheme | None:
    """A scheme from settings: `name`, `error_feedback` and those of the codec; None for `none`.

    Error feedback is on by default for codecs that are biased without it.

    Args:
        values: the settings.
        table: of the settings, for messages.
        sums: whether the run's strategy adds up updates, so that it is on by default for all lossy
            codecs that may have it.

    Raises:
        TypeError: a setting has the wrong type.
        ValueError: a setting is unknown, missing or out of range.
    """
    settings = dict(values)
    name = settings.pop("name", None)
    feedback = settings.pop("error_feedback", None)
    if not isinstance(name, str):
        raise TypeError(misfit(f"{table}.name", str, name))
    if name == "none":
        if settings or feedback:
            raise ValueError(f"Expected no settings without a codec, got {sorted(values)}.")
        return None
    if feedback is not None and type(feedback) is not bool:
        raise TypeError(misfit(f"{table}.error_feedback", bool, feedback))
    method = codec(name, settings, table=table)
    if feedback is None:
        feedback = method.biased or (sums and method.contracts and not method.exact)
    return Scheme(codec=method, error_feedback=feedback)


def scheme_of(message: fleet_pb2.Compression) -> Scheme | None:
    """The scheme of a task, or None.

    Raises:
        TypeError: a setting has the wrong type.
        ValueError: no such codec, or its settings are out of range.
    """
    method = codec_of(message)
    if method is None:
        return None
    return Scheme(codec=method, error_feedback=message.error_feedback)


def codec_of(message: fleet_pb2.Compression) -> Codec | None:
    """The codec of a message, or None.

    Raises:
        TypeError: a setting has the wrong type.
        ValueError: no such codec, or its settings are out of range.
    """
    return codec(message.codec, dict(message.settings)) if message.codec else None


def describe(method: Codec | None, *, error_feedback: bool = False) -> fleet_pb2.Compression:
    """The message that names a codec; empty for None."""
    if method is None:
        return fleet_pb2.Compression()
    return fleet_pb2.Compression(
        codec=method.name, settings=method.settings(), error_feedback=error_feedback
    )


def array_name(values: str, role: str) -> str:
    """Name in the body of one array of an encoded part."""
    return f"{values}.{role}"


def weights_name(part: fleet_pb2.Part) -> str:
    """Name in the body of the weights per coordinate of a part of a site's sum."""
    return array_name(part.values, "weights")


# ---- the sender ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EncodedPart:
    """The values of one part, encoded.

    Attributes:
        codec: that encoded them.
        encoded: its output.
        shape: of the values.
        seed: of the encoding.
        decoded: the values after decoding, if known already.
    """

    codec: Codec
    encoded: Encoded
    shape: Shape
    seed: int
    decoded: Floats | None = None

    def decode(self) -> Floats:
        """The values after decoding, float32 [size]."""
        if self.decoded is not None:
            return self.decoded
        return decode(self.codec, self.encoded, self.shape, self.seed)

    def blocks(self) -> Iterator[tuple[int, Floats]]:
        """The values after decoding: the start of each block, and the block."""
        if self.decoded is not None:
            return pieces_of(self.decoded)
        return decoded(self.codec, self.encoded, self.shape, self.seed)

    def resting(self, keep: Callable[[Values], Values]) -> "EncodedPart":
        """A copy with the arrays that `keep` returns."""
        arrays = {role: keep(array) for role, array in self.encoded.arrays.items()}
        return replace(self, encoded=replace(self.encoded, arrays=arrays, memory={}))

    def describe(self) -> fleet_pb2.Encoding:
        """The message in a header."""
        seed = self.seed if self.codec.draws else 0
        return fleet_pb2.Encoding(arrays=list(self.encoded.arrays), seed=seed)

    def entries(self, values: str) -> Iterator[tuple[TensorEntry, Values]]:
        """Its arrays as tensors of a body."""
        for role, array in self.encoded.arrays.items():
            dtype = self.encoded.dtypes.get(role) or dtype_name(array.dtype)
            yield TensorEntry(array_name(values, role), dtype, array.shape), array


def encode(
    method: Codec,
    values: Floats,
    shape: Shape,
    *,
    task_seed: int,
    key: tuple[str, str],
    memory: Mapping[str, NDArray[Any]] | None = None,
) -> EncodedPart:
    """Encode one part's values.

    Args:
        method: the codec; it applies to the shape.
        values: float32 [size].
        shape: of the tensor or the box.
        task_seed: of the task.
        key: group and tensor.
        memory: the codec's memory of this tensor.
    """
    seed = stream(task_seed, *key)
    return EncodedPart(method, method.encode(values, shape, seed, memory or {}), shape, seed)


# ---- the receiver --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlannedCode:
    """The encoding of a part, checked by the header.

    Attributes:
        codec: that encoded it.
        roles: of its arrays, in order.
        seed: as announced.
    """

    codec: Codec
    roles: tuple[str, ...]
    seed: int


def check_compression(message: fleet_pb2.Compression, wanted: Codec | None) -> None:
    """Check an update's codec against the run's.

    Raises:
        Refusal: WRONG_CODEC.
    """
    if not message.codec and not message.settings:
        return
    expected = describe(wanted)
    if message.codec != expected.codec or message.settings != expected.settings:
        settings = {name[:40]: value for name, value in list(message.settings.items())[:4]}
        raise Refusal(
            Code.WRONG_CODEC,
            f"Expected the run's codec, {expected.codec or 'none'} {dict(expected.settings)}, got "
            f"{message.codec[:40]!r} {settings}.",
        )


def plan_code(
    part: fleet_pb2.Part, method: Codec | None, shape: Shape | None, dtype: str
) -> PlannedCode | None:
    """Check a part's encoding; None if it is not encoded.

    Args:
        part: of the header.
        method: codec of the header and the run.
        shape: of the values; None under a mask.
        dtype: of the unencoded values.

    Raises:
        Refusal: MALFORMED or WRONG_DTYPE.
    """
    if not part.HasField("encoding"):
        return None
    tensor = part.tensor
    if method is None:
        raise Refusal(
            Code.MALFORMED, f"Expected {tensor!r} unencoded, since the header names no codec."
        )
    if shape is None:
        raise Refusal(
            Code.MALFORMED,
            f"Expected {tensor!r} whole or a box of it with {method.name}, got a mask.",
        )
    if dtype != "F32":
        raise Refusal(
            Code.WRONG_DTYPE,
            f"Expected {tensor!r} unencoded: {method.name} does not encode {dtype}.",
        )
    if not method.applies(shape):
        raise Refusal(
            Code.MALFORMED,
            f"Expected {tensor!r} of shape {shape} unencoded: {method.name} does not apply to it.",
        )
    roles = tuple(part.encoding.arrays)
    if roles not in method.forms:
        forms = " or ".join(", ".join(form) for form in method.forms)
        raise Refusal(
            Code.MALFORMED,
            f"Expected the arrays {forms} for {tensor!r}, got "
            f"{', '.join(role[:40] for role in roles[:4]) or 'none'}.",
        )
    return PlannedCode(method, roles, part.encoding.seed)


def check_arrays(
    planned: PlannedCode, tensor: str, values: str, shape: Shape, layout: Layout
) -> None:
    """Check the arrays that a body declares for a part against its tensor.

    Raises:
        Refusal: WRONG_DTYPE, WRONG_SHAPE or MALFORMED.
    """
    infos = [layout.tensors[array_name(values, role)] for role in planned.roles]
    with_tensor(tensor, lambda: planned.codec.check(shape, stored(planned, values, layout)))
    starts = [info.start for info in infos]
    if starts != sorted(starts):
        raise Refusal(
            Code.MALFORMED,
            f"Expected the arrays of {tensor!r} in the order {', '.join(planned.roles)}.",
        )


def stored(planned: PlannedCode, values: str, layout: Layout) -> dict[str, ArrayInfo]:
    """The arrays of a part, as a body declares them."""
    infos = {role: layout.tensors[array_name(values, role)] for role in planned.roles}
    return {role: ArrayInfo(info.dtype, info.shape) for role, info in infos.items()}


def with_tensor(tensor: str, check: Callable[[], T]) -> T:
    """Run a check; add the tensor's name to a refusal."""
    try:
        return check()
    except Refusal as refusal:
        raise Refusal(refusal.code, f"{tensor[:256]}: {refusal}", detail=refusal.detail) from None


class CodeChecker:
    """Checks the arrays of the encoded parts of one body as they arrive.

    Args:
        planned: name of the values, tensor, shape and encoding of each.
        layout: of the body, checked.
    """

    def __init__(
        self, planned: Sequence[tuple[str, str, Shape, PlannedCode]], layout: Layout
    ) -> None:
        self._arrays: dict[str, tuple[str, str, Inspector]] = {}
        self._inspectors: list[tuple[str, Inspector]] = []
        for values, tensor, shape, code in planned:
            inspector = code.codec.inspector(shape, stored(code, values, layout))
            self._inspectors.append((tensor, inspector))
            for role in code.roles:
                self._arrays[array_name(values, role)] = tensor, role, inspector

    def __contains__(self, name: str) -> bool:
        """Whether this tensor of the body is one of the arrays."""
        return name in self._arrays

    def feed(self, name: str, items: NDArray[Any]) -> Iterator[tuple[str, Floats]]:
        """Check the next items of an array; yield decoded values with their tensor's name.

        Raises:
            Refusal: MALFORMED or NOT_FINITE.
        """
        tensor, role, inspector = self._arrays[name]
        yield from self._named(tensor, lambda: inspector.feed(role, items))

    def finish(self) -> Iterator[tuple[str, Floats]]:
        """Finish: yield the remaining values.

        Raises:
            Refusal: MALFORMED.
        """
        for tensor, inspector in self._inspectors:
            yield from self._named(tensor, inspector.finish)

    def _named(
        self, tensor: str, values: Callable[[], Iterator[Floats]]
    ) -> Iterator[tuple[str, Floats]]:
        found = iter(values())
        while (block := with_tensor(tensor, lambda: next(found, None))) is not None:
            if block.size:
                yield tensor, block
