"""Declares the gauges of a server; `fedloom.server.queries.gauges` reads their values."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

Values = Mapping[str, Iterable[tuple[tuple[str, ...], float]]]
"""Name of a gauge → pairs of label values and value."""


@dataclass(frozen=True, slots=True)
class Gauge:
    """Name, description and labels of a gauge."""

    name: str
    words: str
    labels: tuple[str, ...] = ()


GAUGES = (
    Gauge("fedloom_server", "Always 1; the label is the version.", ("version",)),
    Gauge(
        "fedloom_driver_epoch",
        "Number of the turn of the replica that drives, as this one knows it; each change of the "
        "driver adds one. Of replicas only.",
    ),
    Gauge("fedloom_replica_drives", "1 if this replica drives, 0 if it is on standby."),
    Gauge("fedloom_streams", "Streams of devices that attend at this replica itself."),
    Gauge("fedloom_gates", "Replicas that serve devices beside the driver, as that one sees them."),
    Gauge("fedloom_queue_depth", "Calls that wait for a thread or run in it.", ("queue",)),
    Gauge("fedloom_uploads", "Updates in upload."),
    Gauge("fedloom_downloads", "Models in download."),
    Gauge("fedloom_transfers_waiting", "Transfers that wait for a slot.", ("direction",)),
    Gauge("fedloom_clients", "Connected clients, by state.", ("state",)),
    Gauge("fedloom_clients_enrolled", "Clients in the ledger, by status.", ("status",)),
    Gauge("fedloom_clients_failing", "Clients whose last tasks failed or were refused."),
    Gauge(
        "fedloom_check_in_devices",
        "Devices that check in: expected to come when told, waiting for a task now, due within a "
        "minute (soon), missing.",
        ("state",),
    ),
    Gauge("fedloom_devices_reporting", "Connected devices that report readings."),
    Gauge(
        "fedloom_device_reading",
        "Least, median and greatest of a reading over these devices; of GPUs, over all GPUs.",
        ("reading", "quantile"),
    ),
    Gauge("fedloom_watchers", "Readers of the event stream."),
    Gauge(
        "fedloom_certificate_expiry_seconds",
        "Expiry of certificates, seconds since the epoch: of the authority's root and issuer, of "
        "this server, and the earliest of the enrolled clients' latest ones.",
        ("certificate",),
    ),
    Gauge("fedloom_disk_free_bytes", "Free space on the disk of models and updates."),
    Gauge("fedloom_disk_bytes", "Size of that disk."),
    Gauge("fedloom_runs", "Runs that have not ended, by state.", ("state",)),
    Gauge("fedloom_run_rounds_wanted", "Training rounds of a run in total.", ("run",)),
    Gauge("fedloom_run_rounds_committed", "Training rounds of a run that are committed.", ("run",)),
    Gauge("fedloom_run_progress", "Share of a run's rounds that are committed.", ("run",)),
    Gauge(
        "fedloom_run_measure",
        "Mean over clients in the last round with this metric; not for private runs.",
        ("run", "kind", "measure"),
    ),
    Gauge("fedloom_run_epsilon", "Privacy spent by a run, epsilon.", ("run",)),
    Gauge("fedloom_round", "Number of a run's open round.", ("run",)),
    Gauge("fedloom_round_members", "Members of the open round, by phase.", ("run", "phase")),
    Gauge("fedloom_round_accepted", "Accepted updates of the open round.", ("run",)),
    Gauge("fedloom_round_goal", "Updates at which the open round closes.", ("run",)),
    Gauge(
        "fedloom_round_quorum",
        "Fewest updates with which the open round may close at its deadline.",
        ("run",),
    ),
    Gauge(
        "fedloom_round_sessions", "Masking sessions of the open round, by state.", ("run", "state")
    ),
    Gauge("fedloom_round_deadline_seconds", "Time until the open round's deadline.", ("run",)),
)


def families(values: Values) -> Iterator[Metric]:
    """The gauges with their values."""
    for gauge in GAUGES:
        family = GaugeMetricFamily(gauge.name, gauge.words, labels=gauge.labels)
        for labels, value in values.get(gauge.name, ()):
            family.add_metric(labels, value)
        yield family
