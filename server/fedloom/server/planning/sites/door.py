"""Admission of a site's sum by its header, before its body is received."""

from collections.abc import Sequence

from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.updates.header import PlannedPart
from fedloom.protocol.updates.site_sum import check_site_header
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.planning import limits
from fedloom.server.planning.admission import check_model
from fedloom.server.planning.round_plan import RoundPlan


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
    return check_site_header(
        header, plan.limits, limits.empty_sum(plan.spec, plan.manifest), places
    )


def check_whole(planned: Sequence[PlannedPart]) -> None:
    """Check that an update of a site's device covers whole tensors: only their sum is sent on.

    Raises:
        Refusal: WRONG_SHAPE, it covers a part of a tensor.
    """
    for part in planned:
        if part.mask is not None or part.slice is not None:
            raise Refusal(
                Code.WRONG_SHAPE,
                f"Expected {part.tensor!r} whole in a run through a site, got a part of it. Return "
                "whole tensors, or leave them out.",
            )
