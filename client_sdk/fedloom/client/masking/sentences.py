"""The journal's sentence for a masked update about to leave."""

from collections.abc import Iterable
from typing import Any

from fedloom.client.owner.journal_entries import size_text
from fedloom.protocol.masking import SessionRoster
from fedloom.protocol.v1 import fleet_pb2


def masked_account(
    header: fleet_pb2.UpdateHeader,
    measured: Iterable[str],
    roster: SessionRoster,
    server: str,
    federation: str,
) -> tuple[str, dict[str, Any]]:
    """A sentence about a masked body, and its facts, without any value of the update.

    Args:
        header: of its upload.
        measured: metrics in it.
        roster: of its session.
        server: host:port.
        federation: by this client's certificate.
    """
    metrics = sorted(measured)
    facts: dict[str, Any] = {
        "run": header.task.run,
        "round": header.task.round,
        "server": server,
        "federation": federation,
        "size_bytes": header.size_bytes + header.ByteSize(),
        "masking_session": header.masking_session.hex(),
        "members": roster.size,
        "threshold": roster.threshold,
        "metrics": metrics,
    }
    beside = f", and so are its {', '.join(metrics)}" if metrics else ""
    text = (
        f"Sends {size_text(facts['size_bytes'])} to {server} (federation {federation}) for round "
        f"{header.task.round} of {header.task.run}: a masked update, readable only as part of a "
        f"sum of at least {roster.threshold} devices{beside}."
    )
    return text, facts
