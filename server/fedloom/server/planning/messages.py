"""Runs of a Flower `ServerApp`: their settings, and what a message and its reply may be."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedloom.protocol import flower_messages
from fedloom.protocol.errors import UsageError
from fedloom.protocol.updates.message import Limits

DEADLINE_S = 43200.0
"""Default of `cohort.deadline_s` in such a run: the default time to live of Flower's messages."""
_ALLOWED = frozenset({"name", "seed", "config", "flower", "cohort", "priority", "share", "study"})
_OF_COHORT = frozenset({"deadline_s", "patience_s"})


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageSettings:
    """The [flower] table of a run.

    Attributes:
        server_app: its name in the server's `[flower_apps]`.
        max_message_mb: longest message and longest reply, 10^6 bytes.

    Raises:
        UsageError: a value is out of its range.
    """

    server_app: str
    max_message_mb: float = 1024.0

    def __post_init__(self) -> None:
        if not 0 < self.max_message_mb <= 1e6:
            raise UsageError(
                f"Expected flower.max_message_mb above 0 and at most 1e6, got "
                f"{self.max_message_mb:g}."
            )

    @property
    def max_bytes(self) -> int:
        """Longest message, bytes."""
        return int(self.max_message_mb * 1e6)

    @property
    def limits(self) -> Limits:
        """The limits on replies."""
        return Limits(
            max_abs=255.0,
            max_norm=None,
            max_weight=1.0,
            weighting="uniform",
            groups=(flower_messages.GROUP,),
            max_bytes=self.max_bytes + flower_messages.OVERHEAD_BYTES,
        )


def check_settings(values: Mapping[str, Any], usual: Mapping[str, Any]) -> None:
    """Check that a run of a `ServerApp` sets nothing that its app decides.

    Args:
        values: the run's settings.
        usual: their defaults.

    Raises:
        UsageError: the message names the first such setting.
    """
    changed = {name for name, value in values.items() if value != usual[name]}
    cohort = {f"cohort.{name}" for name in values["cohort"] if name not in _OF_COHORT}
    if odd := sorted((changed - _ALLOWED) | cohort):
        raise UsageError(
            f"Expected no {odd[0]} in a run with [flower]: its ServerApp decides that. Leave it "
            "out, or set it in [config], which the app gets as its run config."
        )
