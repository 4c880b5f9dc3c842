"""Admission of an update by its header, before its body is received."""

from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.masking.body import BodyLayout
from fedloom.protocol.updates.header import PlannedPart, check_header
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.planning.round_plan import RoundPlan
from fedloom.strategies.privacy.release import WITHIN


def check_update(header: fleet_pb2.UpdateHeader, plan: RoundPlan) -> list[PlannedPart]:
    """Check a header against the plan of its round; return the parts of the body.

    Raises:
        Refusal: the update is of another model, or exceeds the round's limits.
    """
    if header.masking_session:
        raise Refusal(Code.MALFORMED, "Expected an update in clear in this run, got a masked one.")
    if header.HasField("site"):
        raise Refusal(
            Code.MALFORMED,
            "Expected the update of one device in this run, got the sum of a site: submit runs for "
            "sites with sites = true.",
        )
    check_model(header, plan)
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


def check_masked_update(
    header: fleet_pb2.UpdateHeader, plan: RoundPlan, layout: BodyLayout, session: bytes
) -> None:
    """Check the header of a masked update: it says nothing of the update but what it covers.

    Its parts are checked as the layout follows from them, `MaskedForm.covering`.

    Args:
        header: of the update.
        plan: of its round.
        layout: of the body.
        session: id of its client's session.

    Raises:
        Refusal: the update is of another model or session, or says more than it may.
    """
    check_model(header, plan)
    if header.masking_session != session:
        raise Refusal(
            Code.MASKING_REFUSED,
            f"Expected an update for the session {session.hex()[:12]}, got one for "
            f"{header.masking_session.hex()[:12]}.",
        )
    beside = {field.name for field, _ in header.ListFields()} - _MASKED_FIELDS
    if beside:
        raise Refusal(
            Code.MALFORMED,
            "Expected a masked update without weight and metrics, which are in its body, "
            f"got {', '.join(sorted(beside))}.",
        )
    if header.size_bytes != layout.size_bytes:
        raise Refusal(
            Code.MALFORMED,
            f"Expected a masked body of {layout.size_bytes} bytes, got a declaration of "
            f"{header.size_bytes}.",
        )


def check_masked(header: fleet_pb2.UpdateHeader) -> None:
    """Check that an update of a masked round is not in clear.

    Raises:
        Refusal: MALFORMED.
    """
    if not header.masking_session:
        raise Refusal(
            Code.MALFORMED,
            "Expected a masked update in this run, got one in clear: nothing of it was read. "
            "Update the client.",
        )


_MASKED_FIELDS = frozenset(
    {"task", "client", "model_digest", "size_bytes", "crc32c", "masking_session", "parts"}
)


def check_model(header: fleet_pb2.UpdateHeader, plan: RoundPlan) -> None:
    """Check that an update is of the model that its client got.

    Raises:
        Refusal: WRONG_MODEL.
    """
    given = plan.given_to(header.client).digest
    if header.model_digest != given:
        raise Refusal(
            Code.WRONG_MODEL,
            f"Expected an update of the model {given[:12]}, got one of "
            f"{header.model_digest[:12]!r}.",
        )
