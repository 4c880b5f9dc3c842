"""The gauges of a server, without their values; `fedloom.server.queries.gauges` reads those."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

Values = Mapping[str, Iterable[tuple[tuple[str, ...], float]]]
"""Name of a gauge → its labels' values, and its value."""


@dataclass(frozen=True, slots=True)
class Gauge:
    """A gauge, without its values."""

    name: str
    words: str
    labels: tuple[str, ...] = ()


GAUGES = (
    Gauge("fedloom_server", "1; the label says which version runs.", ("version",)),
    Gauge("fedloom_queue_depth", "Calls that wait for a thread, or are in it.", ("queue",)),
    Gauge("fedloom_uploads", "Updates that are coming in."),
    Gauge("fedloom_downloads", "Models that are going out."),
    Gauge("fedloom_transfers_waiting", "Transfers that wait for a place.", ("direction",)),
    Gauge("fedloom_clients", "Connected clients, by what they do.", ("state",)),
    Gauge("fedloom_clients_enrolled", "Clients in the ledger, by status.", ("status",)),
    Gauge("fedloom_watchers", "Readers of the live stream."),
    Gauge(
        "fedloom_certificate_expiry_seconds",
        "When certificates end, seconds since the epoch: the authority's root and issuer, this "
        "server's own, and the soonest of the latest ones of enrolled clients.",
        ("certificate",),
    ),
    Gauge("fedloom_disk_free_bytes", "Free on the disk of models and updates."),
    Gauge("fedloom_disk_bytes", "Size of that disk."),
    Gauge("fedloom_runs", "Runs that are active, by state.", ("state",)),
    Gauge("fedloom_run_rounds_wanted", "Training rounds that a run is to commit.", ("run",)),
    Gauge("fedloom_run_rounds_committed", "Training rounds that it has committed.", ("run",)),
    Gauge("fedloom_run_progress", "Share of a run's rounds that are committed.", ("run",)),
    Gauge(
        "fedloom_run_measure",
        "Mean over clients in the last round that measured it; not of private runs.",
        ("run", "kind", "measure"),
    ),
    Gauge("fedloom_run_epsilon", "Privacy that a run has spent.", ("run",)),
    Gauge("fedloom_round", "Number of a run's open round.", ("run",)),
    Gauge("fedloom_round_members", "Members of it, by phase.", ("run", "phase")),
    Gauge("fedloom_round_accepted", "Updates that it has.", ("run",)),
    Gauge("fedloom_round_goal", "Updates that it closes with.", ("run",)),
    Gauge("fedloom_round_quorum", "Fewest that it may close with at its deadline.", ("run",)),
    Gauge("fedloom_round_deadline_seconds", "Time until its deadline.", ("run",)),
)


def families(values: Values) -> Iterator[Metric]:
    """The gauges with their values."""
    for gauge in GAUGES:
        family = GaugeMetricFamily(gauge.name, gauge.words, labels=gauge.labels)
        for labels, value in values.get(gauge.name, ()):
            family.add_metric(labels, value)
        yield family
