"""May this update come in? What a round says to the header of one, before its body."""

from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.updates.header import PlannedPart, check_header
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.planning.round_plan import RoundPlan
from fedloom.strategies.privacy.release import WITHIN


def check_update(header: fleet_pb2.UpdateHeader, plan: RoundPlan) -> list[PlannedPart]:
    """Hold a header against the round that it is for.

    Raises:
        Refusal: it is of another model, or not as the round's limits want it.
    """
    given = plan.given.digest
    if header.model_digest != given:
        raise Refusal(
            Code.WRONG_MODEL,
            f"Expected an update of the model {given[:12]}, got one of "
            f"{header.model_digest[:12]!r}.",
        )
    if abs(header.scalars.get(WITHIN, 0.5)) != 0.5:
        raise Refusal(
            Code.MALFORMED,
            f"Expected {WITHIN} = 0.5 or -0.5, got {header.scalars[WITHIN]:g}.",
        )
    return check_header(header, plan.limits, plan.manifest)
