"""Counters and gauges together, as Prometheus and OpenMetrics read them."""

from collections.abc import Iterator

from prometheus_client import Metric, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector, CollectorRegistry

from fedloom.server.metrics.gauges import Values, families
from fedloom.server.metrics.meters import Meters

_PROCESS = CollectorRegistry()
ProcessCollector(registry=_PROCESS)  # memory, processor time, open files: under their usual names


class Scrape(Collector):
    """Everything that there is to read.

    Args:
        meters: what was counted.
        values: how things stand.
    """

    def __init__(self, meters: Meters, values: Values) -> None:
        self._meters = meters
        self._values = values

    def collect(self) -> Iterator[Metric]:
        """All families: of the process, counted, and of the moment."""
        yield from _PROCESS.collect()
        yield from self._meters.registry.collect()
        yield from families(self._values)


def text(scrape: Scrape, accept: str = "") -> tuple[bytes, str]:
    """What a scrape reads, and its media type.

    Args:
        scrape: to write.
        accept: the request's header.
    """
    encode, media_type = choose_encoder(accept)
    return encode(scrape), media_type
