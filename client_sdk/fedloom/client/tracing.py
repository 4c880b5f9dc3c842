"""The settings of `[tracing]`."""

from dataclasses import dataclass

from fedloom.client.settings import setting
from fedloom.protocol.tracing import check_endpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracing:
    """Where this device tells how long its parts of a round take."""

    endpoint: str = setting(
        "",
        doc="URL of a collector that takes OTLP over HTTP; none: nothing is told",
        example="http://localhost:4318",
    )

    def __post_init__(self) -> None:
        """Check the URL."""
        check_endpoint(self.endpoint)
