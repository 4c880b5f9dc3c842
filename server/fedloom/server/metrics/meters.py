"""Counters and histograms of a server, in a registry per server.

Source: Prometheus, "Metric and label naming" and "Histograms and summaries".

Invariants: labels take few values known in advance: no names of clients or runs, no free text;
every counter exists from the start at 0, so that its first increment is seen; an increment, as for
each chunk of a body, costs a microsecond.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics

from fedloom.protocol.errors import Code
from fedloom.protocol.task_kind import Kind
from fedloom.server.engine import SessionState

disable_created_metrics()  # type: ignore[no-untyped-call] # an unused series for each

SHORT_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Buckets for steps within the process, seconds."""

LONG_S = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 10800.0)
"""Buckets for steps that wait for devices, seconds."""

COMMITTED, ABANDONED = "committed", "abandoned"

GOAL, EARLY = "goal", "early"
QUORUM, TOO_FEW, FAULT, STOPPED = "quorum", "too_few", "fault", "stopped"
REASONS = {COMMITTED: (GOAL, EARLY), ABANDONED: (QUORUM, TOO_FEW, FAULT, STOPPED)}
"""Why rounds end. Committed: at their goal, or early, by the deadline or an operator. Abandoned:
below their quorum, with too few updates for the aggregation, by an error, or by an operator."""

KINDS = tuple(map(str, Kind))

SHARES, BODY, AGREEMENT, REVEAL = "shares", "body", "agreement", "reveal"
"""Phases of the messages of a masking session in which members drop out."""

UPDATE, CALL, ENROLMENT = "update", "call", "enrolment"
FLEET = "fleet"

STORE_REQUESTS = ("put", "get", "delete", "list")
"""What a server asks of an object store."""


class Meters:
    """The counters and histograms.

    Attributes:
        registry: contains all of them.
    """

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def counter(name: str, words: str, *labels: str) -> Counter:
            return Counter(f"fedloom_{name}", words, labels, registry=registry)

        def histogram(name: str, words: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"fedloom_{name}", words, labels, buckets=buckets, registry=registry)

        self.rounds = counter(
            "rounds",
            "Rounds that ended, by kind, outcome and reason.",
            "kind", "outcome", "reason",
        )  # fmt: skip
        self.accepted = counter("updates_accepted", "Updates accepted into a round.")
        self.refusals = counter(
            "refusals",
            "Refused requests, by code; `what` is an update, another call of a client, or an "
            "enrolment.",
            "what", "code",
        )  # fmt: skip
        self.connections = counter(
            "connections_opened",
            "Connections that began a TLS handshake, whether it succeeded or not.",
            "port",
        )
        self.check_ins = counter("check_ins", "Check-ins of devices.")
        self.offers = counter("offers", "Tasks offered to clients.")
        self.declined = counter("offers_declined", "Tasks that clients declined.")
        self.failed = counter("tasks_failed", "Tasks that clients accepted and failed.")
        self.received = counter("received_bytes", "Bytes of updates received from clients.")
        self.sent = counter("sent_bytes", "Bytes of models sent to clients.")
        self.round_s = histogram("round_seconds", "From a round's opening to its end.", LONG_S)
        self.commit_s = histogram(
            "commit_seconds", "From a round's close to its model in the ledger.", SHORT_S
        )
        self.upload_s = histogram(
            "upload_seconds", "From a valid header to an accepted update.", LONG_S
        )
        self.checksum_s = histogram(
            "checksum_seconds",
            "Time to check an update's bytes and values, over all its chunks.",
            SHORT_S,
        )
        self.sync_s = histogram("sync_seconds", "Time to sync an update's bytes to disk.", SHORT_S)
        self.fold_s = histogram(
            "fold_seconds", "Time to add an update to its round's sum.", SHORT_S
        )
        self.ledger_s = histogram(
            "ledger_seconds", "Time of a transaction of the ledger, including its wait.", SHORT_S
        )
        self.store_s = histogram(
            "store_request_seconds",
            "Time of a request to the object store, without the wait before a repeat.",
            SHORT_S,
            "request",
        )
        self.store_faults = counter(
            "store_faults", "Requests to the object store that failed; each is repeated.", "request"
        )
        self.sessions = counter(
            "masking_sessions",
            "Masking sessions that ended, by outcome and by the state in which they did.",
            "outcome", "state",
        )  # fmt: skip
        self.drop_outs = counter(
            "masking_drop_outs",
            "Members of masking sessions that did not send the message of a phase in time.",
            "phase",
        )
        self.session_phase_s = histogram(
            "masking_state_seconds", "Time of a masking session in a state.", LONG_S, "state"
        )
        self.lag_s = histogram(
            "event_loop_lag_seconds", "Delay of the event loop, measured twice per second.", SHORT_S
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
        going_on = [state for state in SessionState if not state.is_over]
        self.sessions.labels(SessionState.DONE.value, SessionState.UNMASKING.value)
        for state in going_on:
            self.sessions.labels(SessionState.ABANDONED.value, state.value)
            self.session_phase_s.labels(state.value)
        for phase in (SHARES, BODY, AGREEMENT, REVEAL):
            self.drop_outs.labels(phase)
        for request in STORE_REQUESTS:
            self.store_s.labels(request)
            self.store_faults.labels(request)
        for port in (FLEET, ENROLMENT):
            self.connections.labels(port)
        for code in (Code.BAD_TOKEN, Code.BAD_CSR, Code.EXPIRED):
            self.refusals.labels(ENROLMENT, code.value)

    def asked_store(self, request: str, seconds: float, *, failed: bool) -> None:
        """The object store answered a request, or did not."""
        self.store_s.labels(request).observe(seconds)
        if failed:
            self.store_faults.labels(request).inc()


@contextmanager
def timed(histogram: Histogram, *, times: int = 1) -> Iterator[None]:
    """Observe the duration of a block, even if it raises; that of each of `times` equal steps."""
    begun = time.perf_counter()
    try:
        yield
    finally:
        each_s = (time.perf_counter() - begun) / times
        for _ in range(times):
            histogram.observe(each_s)
