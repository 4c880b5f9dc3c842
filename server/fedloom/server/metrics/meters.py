"""Counters and histograms of what happens on a server, each in a registry of its own.

Source: Prometheus, "Metric and label naming" and "Histograms and summaries".

Invariants: labels take few values that are known beforehand: no client's name, no run, no text of
anybody's; a counter that could ever move is there from the start, at 0, so that its first step is
seen; what moves them for each chunk of a body costs a microsecond.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics

from fedloom.protocol.errors import Code

disable_created_metrics()  # type: ignore[no-untyped-call] # a series more for each, of no use here

SHORT_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Of steps within a process."""

LONG_S = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 10800.0)
"""Of what waits for devices."""

COMMITTED, ABANDONED = "committed", "abandoned"

GOAL, EARLY = "goal", "early"
QUORUM, TOO_FEW, FAULT, STOPPED = "quorum", "too_few", "fault", "stopped"
REASONS = {COMMITTED: (GOAL, EARLY), ABANDONED: (QUORUM, TOO_FEW, FAULT, STOPPED)}
"""Why rounds end: with as many updates as wanted, or fewer, by the deadline or by hand; without a
quorum, with updates that the aggregation cannot use, by an error, or because somebody said so."""

KINDS = ("train", "evaluate")

UPDATE, CALL, ENROLMENT = "update", "call", "enrolment"


class Meters:
    """What is counted.

    Attributes:
        registry: has them all.
    """

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def counter(name: str, words: str, *labels: str) -> Counter:
            return Counter(f"fedloom_{name}", words, labels, registry=registry)

        def histogram(name: str, words: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"fedloom_{name}", words, buckets=buckets, registry=registry)

        self.rounds = counter(
            "rounds",
            "Rounds that ended, by kind, outcome and reason.",
            "kind", "outcome", "reason",
        )  # fmt: skip
        self.accepted = counter("updates_accepted", "Updates that count in a round.")
        self.refusals = counter(
            "refusals",
            "What was turned away at the door, by code; `what` is an update, another call of a "
            "client, or an enrolment.",
            "what", "code",
        )  # fmt: skip
        self.offers = counter("offers", "Tasks that were sent to clients.")
        self.declined = counter("offers_declined", "Tasks that clients declined.")
        self.failed = counter("tasks_failed", "Tasks that clients took and gave up.")
        self.received = counter("received_bytes", "Bytes of updates that came from clients.")
        self.sent = counter("sent_bytes", "Bytes of models that went to clients.")
        self.round_s = histogram("round_seconds", "From a round's opening to its end.", LONG_S)
        self.commit_s = histogram(
            "commit_seconds", "From a round's close to its model in the ledger.", SHORT_S
        )
        self.upload_s = histogram(
            "upload_seconds", "From a good header to an accepted update.", LONG_S
        )
        self.checksum_s = histogram(
            "checksum_seconds",
            "Checking an update's bytes and values, all its chunks together.",
            SHORT_S,
        )
        self.sync_s = histogram(
            "sync_seconds", "Making an update's bytes survive power cuts.", SHORT_S
        )
        self.fold_s = histogram("fold_seconds", "Adding an update to its round's sum.", SHORT_S)
        self.ledger_s = histogram(
            "ledger_seconds", "A transaction of the ledger, with the wait for its turn.", SHORT_S
        )
        self.lag_s = histogram(
            "event_loop_lag_seconds",
            "How late the event loop is, looked at twice a second.",
            SHORT_S,
        )
        self._begin()

    def _begin(self) -> None:
        for kind in KINDS:
            for outcome, reasons in REASONS.items():
                for reason in reasons:
                    self.rounds.labels(kind, outcome, reason)
        for code in Code:
            self.refusals.labels(UPDATE, code.value)
            self.refusals.labels(CALL, code.value)
        for code in (Code.BAD_TOKEN, Code.BAD_CSR, Code.EXPIRED):
            self.refusals.labels(ENROLMENT, code.value)


@contextmanager
def timed(histogram: Histogram) -> Iterator[None]:
    """Observe how long a block takes, whatever becomes of it."""
    begun = time.perf_counter()
    try:
        yield
    finally:
        histogram.observe(time.perf_counter() - begun)
