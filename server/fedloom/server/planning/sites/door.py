"""Admission of a site's sum by its header, before its body is received, and bounds of the body."""

from dataclasses import replace

from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.updates.header import PlannedPart
from fedloom.protocol.updates.message import Limits
from fedloom.protocol.updates.site_header import Slack, check_site_header
from fedloom.protocol.updates.site_sum import metrics_of_site
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.engine import RoundKind
from fedloom.server.planning import limits
from fedloom.server.planning.admission import check_model
from fedloom.server.planning.round_plan import RoundPlan
from fedloom.strategies.masking.plausible import implausible_words
from fedloom.strategies.masking.sessions import threshold


def check_sum(header: fleet_pb2.UpdateHeader, plan: RoundPlan, places: int) -> list[PlannedPart]:
    """Check the header of a site's sum against the plan of its round; return the body's parts.

    Args:
        header: of the update.
        plan: of its round.
        places: devices that the site's task allows.

    Raises:
        Refusal: it is no sum, is of another model, or exceeds what so many devices may send.
    """
    if not header.HasField("site"):
        raise Refusal(
            Code.MALFORMED,
            "Expected the sum of a site in this run, got the update of a device. Run the site's "
            "server with --upstream.",
        )
    check_model(header, plan)
    planned = check_site_header(
        header,
        plan.limits,
        limits.empty_sum(plan.spec, plan.manifest),
        places,
        plan.spec.metrics_settings(),
    )
    _check_sessions(header, plan)
    return planned


def sum_bounds(plan: RoundPlan) -> tuple[Limits, Slack | None]:
    """Return the limits on the values in sums, and by how much masked ones may differ.

    Args:
        plan: of a round of sites.
    """
    spec = plan.spec
    grid, noise = spec.grid(), spec.session_noise()
    if spec.masking is None or grid is None:
        return plan.limits, None
    size = sum(each.size for each in limits.sums(spec, plan.manifest).values())
    noisy = 0.0 if noise is None else noise.largest(grid.exponent, size)
    bounds = replace(plan.limits, max_abs=grid.max_abs)
    return bounds, Slack(rounding=float(grid.rounding), noise=noisy)


def _check_sessions(header: fleet_pb2.UpdateHeader, plan: RoundPlan) -> None:
    """Check that a sum can be that of masking sessions, and its metrics those of their words.

    Raises:
        Refusal: it has fewer devices than the smallest session's sum, or other metrics.
    """
    spec, site, trains = plan.spec, header.site, plan.kind is RoundKind.TRAIN
    words = spec.masked_words(trains=trains, evaluates=spec.evaluate is True or not trains)
    if words is None:
        return
    if site.devices < (least := threshold(spec.least_devices)):
        raise Refusal(
            Code.WEIGHT_OUT_OF_RANGE,
            f"Expected a sum of at least {least} devices, as masking sessions of "
            f"{spec.least_devices} give (masking.min_group), got {site.devices}.",
        )
    sums = dict.fromkeys(words.names, 0)
    for kind, message in (("training", site.training), ("evaluation", site.evaluation)):
        metrics = metrics_of_site(message)
        named = metrics.values.keys() - (words.bounds if kind in words.kinds else ())
        if named or (metrics.num_examples and kind not in words.kinds):
            raise Refusal(
                Code.MALFORMED,
                f"Expected in {kind} no metrics but those of masking.metrics, got "
                f"{min(named, default='a number of examples')[:80]!r}.",
            )
        sums |= words.words_of(kind, metrics)
    if why := implausible_words(words, sums, site.devices):
        raise Refusal(
            Code.MAGNITUDE_TOO_LARGE,
            f"Expected metrics as the words of {site.devices} masked updates give them, got {why}.",
        )
