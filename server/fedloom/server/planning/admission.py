"""Admission of an update by its header, before its body is received."""

from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.updates.header import PlannedPart, check_header
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.planning.round_plan import RoundPlan
from fedloom.strategies.privacy.release import WITHIN


def check_update(header: fleet_pb2.UpdateHeader, plan: RoundPlan) -> list[PlannedPart]:
    """Check a header against the plan of its round; return the parts of the body.

    Raises:
        Refusal: the update is of another model, or exceeds the round's limits.
    """
    given = plan.given_to(header.client).digest
    if header.model_digest != given:
        raise Refusal(
            Code.WRONG_MODEL,
            f"Expected an update of the model {given[:12]}, got one of "
            f"{header.model_digest[:12]!r}.",
        )
    if abs(header.scalars.get(WITHIN, 0.5)) != 0.5:
        raise Refusal(
            Code.MALFORMED, f"Expected {WITHIN} = 0.5 or -0.5, got {header.scalars[WITHIN]:g}."
        )
    planned = check_header(header, plan.limits, plan.manifest)
    if plan.messages and [part.slice and part.slice.ranges[0][0] for part in planned] != [0]:
        raise Refusal(
            Code.MALFORMED,
            f"Expected one part with the first bytes of a reply, got {len(planned)} parts.",
        )
    return planned
