"""All metrics, in the text formats of Prometheus and OpenMetrics."""

from collections.abc import Iterator

from prometheus_client import Metric, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector, CollectorRegistry

from fedloom.server.metrics.gauges import GAUGES, Values, families
from fedloom.server.metrics.meters import Meters
from fedloom.server.metrics.replica import ReplicaState

_PROCESS = CollectorRegistry()
ProcessCollector(registry=_PROCESS)  # memory, CPU time, open files: under their usual names


class Scrape(Collector):
    """Collects all metrics: counters, histograms, and these values of the gauges."""

    def __init__(self, meters: Meters, values: Values) -> None:
        self._meters = meters
        self._values = values

    def collect(self) -> Iterator[Metric]:
        """All families: of the process, the counters and histograms, the gauges."""
        yield from _PROCESS.collect()
        yield from self._meters.registry.collect()
        yield from families(self._values)


class ReplicaScrape(Collector):
    """Collects the gauges of a replica, and of a gate all it measures, for a port without logins.

    Its counters and histograms name neither clients nor runs.
    """

    def __init__(self, replica: ReplicaState) -> None:
        self._replica = replica

    def collect(self) -> Iterator[Metric]:
        """The families that have a value."""
        replica, serving = self._replica, self._replica.serving
        values = replica.values()
        if serving is not None:
            if not replica.drives:  # else they are on the console, for the same process
                yield from _PROCESS.collect()
            yield from serving.meters.registry.collect()
            values = {**values, **serving.values()}
        yield from (each for each in families(values) if each.samples)


def text(scrape: Collector, accept: str = "") -> tuple[bytes, str]:
    """The metrics as text, and its media type, by the request's Accept header."""
    encode, media_type = choose_encoder(accept)
    return encode(scrape), media_type


def table() -> str:
    """The metrics as a Markdown table, for docs/metrics.md."""
    rows = ["| metric | labels | |", "|---|---|---|"]
    for family in Scrape(Meters(), {}).collect():
        if family.name.startswith("fedloom_"):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            labels = ", ".join(f"`{label}`" for label in _labels(family))
            rows.append(f"| `{name}` | {labels} | {family.type}: {family.documentation} |")
    return "\n".join(rows) + "\n"


def _labels(family: Metric) -> tuple[str, ...]:
    declared = {gauge.name: gauge.labels for gauge in GAUGES}
    if family.name in declared:
        return declared[family.name]
    return tuple(sorted({label for s in family.samples for label in s.labels} - {"le"}))
