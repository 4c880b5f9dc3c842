"""Checks the header of a site's sum before its body is received.

Invariant: `check_site_header`, and `SiteSumChecker` for the body, pass only what so many devices
could have sent together: no weight, value or number of devices above theirs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.updates.compression import weights_name
from fedloom.protocol.updates.header import (
    MAX_EXAMPLES,
    MAX_METRIC,
    MAX_METRICS,
    MAX_NAME,
    PlannedPart,
    check_unique,
)
from fedloom.protocol.updates.message import Limits
from fedloom.protocol.updates.site_members import read_members
from fedloom.protocol.updates.site_sum import sums_of, units_of
from fedloom.protocol.v1 import fleet_pb2
from fedloom.strategies import MetricsSettings, Partial
from fedloom.strategies.exact.fixed_point import MIN_WEIGHT, UNIT_BITS, WEIGHT_UNIT, weight_units
from fedloom.strategies.exact.packed import Packing
from fedloom.strategies.summed_metrics import extremes_of

MAX_TERMS: Final = 64
"""Most numbers whose sum is one sum of a metric."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slack:
    """By how much the addends of masked updates may differ from value times weight, in steps.

    Attributes:
        rounding: of an addend.
        noise: most noise of a device in a value, of n devices √n times as much; 0 for none.
    """

    rounding: float
    noise: float = 0.0

    def of(self, devices: int) -> dict[str, float]:
        """The arguments of `Partial.bound` for the sum of so many."""
        return {"rounding": self.rounding, "noise": self.noise * math.sqrt(devices)}


def check_site_header(
    header: fleet_pb2.UpdateHeader,
    limits: Limits,
    empty: Partial,
    devices: int,
    settings: MetricsSettings,
) -> list[PlannedPart]:
    """Check the header of a site's sum before its body.

    Args:
        header: of the update.
        limits: on the updates of the round's devices.
        empty: the round's sum before any update.
        devices: most of them whose updates the sum may have.
        settings: of the run's metrics.

    Returns:
        The parts of the body.

    Raises:
        Refusal: the first fault found.
    """
    site = header.site
    if (site.exponent, site.narrow) != (empty.exponent, empty.narrow):
        raise Refusal(
            Code.MALFORMED,
            f"Expected a sum with exponent {empty.exponent} and narrow={empty.narrow}, got "
            f"{site.exponent} and {site.narrow}. Update the site's server.",
        )
    if not 1 <= site.devices <= devices:
        raise Refusal(
            Code.WEIGHT_OUT_OF_RANGE,
            f"Expected a sum of 1 to {devices} devices, as the site's task and registration allow, "
            f"got {site.devices}.",
        )
    if bool(header.parts) != bool(site.updates) or site.updates > site.devices:
        raise Refusal(
            Code.MALFORMED,
            f"Expected of {site.devices} devices as many with tensors as have some in the sum, got "
            f"{site.updates} with {len(header.parts)} parts. Update the site's server.",
        )
    _check_total(header, limits)
    read_members(site)
    for metrics in (site.training, site.evaluation):
        _check_metrics(metrics, site.devices, settings)
    if len(site.tensors) != len(header.parts) or bool(header.parts) != bool(header.size_bytes):
        raise Refusal(
            Code.MALFORMED,
            f"Expected a description of each part, and a body if there are parts, got "
            f"{len(header.parts)} parts, {len(site.tensors)} descriptions and "
            f"{header.size_bytes} bytes.",
        )
    planned: list[PlannedPart] = []
    for part, tensor in zip(header.parts, site.tensors, strict=True):
        planned += _plan(part, tensor, header, limits, empty)
    check_unique([(part.group, part.tensor) for part in header.parts])
    check_unique([each.values for each in planned])
    return planned


def _check_total(header: fleet_pb2.UpdateHeader, limits: Limits) -> None:
    devices, uniform = header.site.devices, limits.weighting == "uniform"
    least = float(devices) if uniform else MIN_WEIGHT
    most = devices * (1.0 if uniform else limits.max_weight)
    if not least <= header.weight <= most * _ROUNDED:
        raise Refusal(
            Code.WEIGHT_OUT_OF_RANGE,
            f"Expected a weight from {least:g} to {most:g} of {devices} devices, got "
            f"{header.weight:g}.",
        )
    forbidden = [f.name for f, _ in header.ListFields() if f.name in _OF_DEVICES]
    if forbidden:
        raise Refusal(
            Code.MALFORMED, f"Expected no {forbidden[0]} beside a site's sum, got some of it."
        )


_ROUNDED: Final = 1 + 2.0**-50
"""Factor for the rounding of a sum of weights to float64."""
_OF_DEVICES: Final = frozenset(
    {"training", "evaluation", "scalars", "compression", "masking_session"}
)


def _plan(
    part: fleet_pb2.Part,
    tensor: fleet_pb2.SiteTensor,
    header: fleet_pb2.UpdateHeader,
    limits: Limits,
    empty: Partial,
) -> list[PlannedPart]:
    key = part.group, part.tensor
    spec = empty.specs.get(key)
    if spec is None:
        raise Refusal(
            Code.UNKNOWN_TENSOR,
            f"Expected one of the {len(empty.specs)} tensors that this run sums, got "
            f"{part.tensor[:MAX_NAME]!r} in {part.group[:MAX_NAME]!r}.",
        )
    if part.WhichOneof("coverage") != "full" or part.HasField("encoding"):
        raise Refusal(Code.MALFORMED, f"Expected {part.tensor!r} packed as a whole, got a part.")
    packing = Packing(tensor.bits, tensor.low)
    try:
        sums_of(empty, part, tensor)
    except ValueError as error:
        raise Refusal(Code.MAGNITUDE_TOO_LARGE, f"{part.tensor}: {error}") from None
    units, most, partly = units_of(tensor), most_units(header, limits), tensor.HasField("weights")
    if not (0 if partly else 1) <= units <= most:
        raise Refusal(
            Code.WEIGHT_OUT_OF_RANGE,
            f"Expected a weight of {part.tensor!r} above 0 and at most "
            f"{float(most * Fraction(WEIGHT_UNIT)):g}, that of {header.site.devices} devices, got "
            f"{float(units * Fraction(WEIGHT_UNIT)):g}.",
        )
    names = {part.values: packing}
    if partly:
        _check_weights(part, tensor.weights, most, limits)
        names[weights_name(part)] = Packing(tensor.weights.bits, tensor.weights.low)
    return [
        PlannedPart(part.group, part.tensor, name, (packing.num_bytes(spec.size),), "U8")
        for name, packing in names.items()
    ]


def _check_weights(
    part: fleet_pb2.Part, weights: fleet_pb2.SiteWeights, most: int, limits: Limits
) -> None:
    """Check how weights per coordinate are packed: in no more bits than the largest one has."""
    least = 0 if limits.weighting == "client" else UNIT_BITS  # others are whole numbers
    low = weights.low + UNIT_BITS
    if not (weights.bits >= 2 and low >= least and low + weights.bits - 1 <= most.bit_length()):
        raise Refusal(
            Code.WEIGHT_OUT_OF_RANGE,
            f"Expected weights of {part.tensor!r} from 2^{least - UNIT_BITS} up, of at most "
            f"{float(most * Fraction(WEIGHT_UNIT)):g}, got {weights.bits} bits from "
            f"2^{weights.low} up.",
        )


def _check_metrics(message: fleet_pb2.SiteMetrics, devices: int, settings: MetricsSettings) -> None:
    most = devices * MAX_EXAMPLES
    if message.num_examples > most:
        raise Refusal(
            Code.WEIGHT_OUT_OF_RANGE,
            f"Expected at most {most} examples of {devices} devices, got {message.num_examples}.",
        )
    if len(message.values) > MAX_METRICS * devices:
        raise Refusal(
            Code.MALFORMED,
            f"Expected at most {MAX_METRICS * devices} metrics, got {len(message.values)}.",
        )
    for name, metric in message.values.items():
        terms = (*metric.products, *metric.weights)
        if len(name) > MAX_NAME or not name.isprintable() or len(terms) > 2 * MAX_TERMS:
            raise Refusal(
                Code.MALFORMED,
                f"Expected metrics by printable names of at most {MAX_NAME} characters, each of at "
                f"most {2 * MAX_TERMS} numbers, got {name[:80]!r} of {len(terms)}.",
            )
        if not all(map(math.isfinite, terms)):
            raise Refusal(Code.NOT_FINITE, f"Expected finite sums of the metric {name!r}.")
        product = sum(map(Fraction, metric.products), Fraction())
        weight = sum(map(Fraction, metric.weights), Fraction())
        if not (
            0 < weight <= message.num_examples and abs(product) <= Fraction(MAX_METRIC) * weight
        ):
            raise Refusal(
                Code.MAGNITUDE_TOO_LARGE,
                f"Expected a mean of {name!r} of at most {MAX_METRIC:g}, over at most "
                f"{message.num_examples} examples, got {float(weight):g} examples.",
            )
        _check_extremes(name, metric, product / weight, wanted=bool(extremes_of(settings)))
        _check_counts(name, metric.counts, devices, settings.edges.get(name))


def _check_extremes(
    name: str, metric: fleet_pb2.SiteMetric, mean: Fraction, *, wanted: bool
) -> None:
    """Check that extremes are those of values whose mean this is."""
    if not wanted and not metric.HasField("least") and not metric.HasField("most"):
        return
    least, most = metric.least, metric.most
    reach = max(abs(least), abs(most))  # a NaN fails, too
    slack = reach * 2.0**-50
    sent = wanted and metric.HasField("least") and metric.HasField("most")
    if not (sent and reach <= MAX_METRIC and least - slack <= mean <= most + slack):
        raise Refusal(
            Code.MAGNITUDE_TOO_LARGE,
            f"Expected the least and the largest value of {name!r} if the run asks for them, on "
            f"both sides of the mean {float(mean):g}, got {least:g} and {most:g}.",
        )


def _check_counts(
    name: str, counts: Sequence[int], devices: int, edges: Sequence[float] | None
) -> None:
    wanted = 0 if edges is None else len(edges) + 1
    if len(counts) != wanted or (wanted and not 1 <= sum(counts) <= devices):
        raise Refusal(
            Code.MALFORMED,
            f"Expected {wanted} counts of {name!r} of 1 to {devices} devices in all, got "
            f"{len(counts)} of {sum(counts)}.",
        )


def most_units(header: fleet_pb2.UpdateHeader, limits: Limits) -> int:
    """Return the largest weight of so many devices, in units of `WEIGHT_UNIT`."""
    heaviest = 1.0 if limits.weighting == "uniform" else limits.max_weight
    return header.site.devices * weight_units(heaviest)
