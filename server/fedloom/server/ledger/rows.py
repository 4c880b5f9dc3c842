"""The rows that the ledger returns: one frozen dataclass per kind, with a field per column.

Times are seconds since the epoch, UTC; None stands for NULL.
"""

from dataclasses import dataclass, field, fields
from typing import Any


def values(row: Any) -> dict[str, Any]:
    """A row's columns by name; nested values are not copied."""
    return {each.name: getattr(row, each.name) for each in fields(row)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A run.

    Attributes:
        spec: its specification, as `RunSpec.as_dict` gives it.
        model: digest of the current model.
        strategy_state: note of the strategy's state; None without one.
        committed: training rounds that count.
        privacy: the run's claim; None without differential privacy.
        goals: goal and quorum that an operator set; None for those of the specification.
        best: the best model, by `fedloom.server.planning.best.mark`, with its digest as `model`;
            None before an evaluation.
        priority: of the run; None for 0.
        share: of the clients; None for 1.
        study: of the run; empty or None without one.
        upstream: name of this server at the parent whose run it is; None for one of its own.
    """

    id: str
    name: str
    spec: dict[str, Any]
    state: str
    reason: str
    created_at: float
    ended_at: float | None
    model: str
    strategy_state: str | None
    committed: int
    last_round: int
    abandoned_in_a_row: int
    privacy: dict[str, Any] | None
    goals: list[int] | None
    best: dict[str, Any] | None = None
    priority: int | None = None
    share: float | None = None
    study: str | None = None
    upstream: str | None = None

    @property
    def rank(self) -> tuple[int, float]:
        """Priority and share."""
        return self.priority or 0, 1.0 if self.share is None else self.share

    @property
    def done_of(self) -> tuple[int, int]:
        """Rounds committed, and rounds wanted.

        The rounds of a Flower `ServerApp` are not known before: both are those that it had.
        """
        if self.spec.get("flower"):
            return self.last_round, self.last_round
        return self.committed, int(self.spec["rounds"])


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRow:
    """A round of a run.

    Attributes:
        cause: code of the reason for which it was abandoned; None if it was not.
        underflow: share of values other than zero that a narrow sum rounded to zero; None for exact
            sums and with [privacy].
        undone_at: when a rollback undid it; None if none did.
        summary: counts of its members, once it is over.
        upstream: of a parent's round, its goal here and the rounds trained before it; else None.
    """

    run: str
    number: int
    kind: str
    state: str
    reason: str
    cause: str | None
    opened_at: float
    deadline_at: float
    closed_at: float | None
    model_in: str
    model_out: str | None
    training: dict[str, Any] | None
    evaluation: dict[str, Any] | None
    privacy: dict[str, Any] | None
    underflow: float | None
    undone_at: float | None
    summary: dict[str, Any] | None
    upstream: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRow:
    """A message of a Flower `ServerApp` to a client.

    Attributes:
        run: id of the run.
        id: of the message; the same when the app is repeated.
        position: in the order in which the app sent messages, from 0.
        client: the recipient.
        digest: of the message's file.
        size_bytes: of that file.
        lookups: how often the app had asked for the clients before.
        round: that sends it; None while it waits.
        answered: whether its reply is stored; None before its end.
        error: why there is no reply.
    """

    run: str
    id: str
    position: int
    client: str
    digest: str
    size_bytes: int
    lookups: int
    round: int | None = None
    answered: bool | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedRoundRow(RoundRow):
    """A round with its number of accepted updates, and their mean staleness."""

    accepted: int
    staleness: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CohortRow:
    """A member of a round's cohort, and what the server saw of its work; None if not seen."""

    run: str
    round: int
    client: str
    phase: str
    reason: str = ""
    offered_at: float | None = None
    places: int | None = None
    took_at: float | None = None
    download_began_at: float | None = None
    download_ended_at: float | None = None
    training_began_at: float | None = None
    upload_began_at: float | None = None
    upload_ended_at: float | None = None
    ended_at: float | None = None
    bytes_down: int | None = None
    bytes_up: int | None = None
    retries: int | None = None
    code: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRow(CohortRow):
    """A member of a cohort, and when its update was accepted; None without an update."""

    accepted_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRow(SessionRow):
    """A member of a cohort with its update; None without an update."""

    counts_in: int | None = None
    staleness: int | None = None
    weight: float | None = None
    norm: float | None = None
    size_bytes: int | None = None
    training: dict[str, Any] | None = None
    evaluation: dict[str, Any] | None = None
    devices: int | None = None
    members: list[dict[str, Any]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskingSessionRow:
    """A masking session, with who sent what and when; nothing of what was sent.

    Attributes:
        session: its number in the round, from 0.
        members: U1, by name.
        shared: U2; None before it is fixed, like the next two.
        masked: U3: the members whose updates are in the sum.
        revealed: U4.
        deadline_at: when members forget their secrets.
        sent: phase of a message → client → when it was stored.
        closed: members that gave the session up, and cannot have signed its survivors.
        blamed: client and cause, of `fedloom.server.ledger.masking.blames`.
    """

    session: int
    state: str
    reason: str
    width_class: str
    members: list[str]
    shared: list[str] | None
    masked: list[str] | None
    revealed: list[str] | None
    opened_at: float
    deadline_at: float
    sent: dict[str, dict[str, float]] = field(default_factory=dict)
    closed: list[str] = field(default_factory=list)
    blamed: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRow(MemberRow):
    """A client's part in a round, with the round's kind and state."""

    kind: str
    round_state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LastPartRow:
    """What a client did last in a round of a run."""

    client: str
    run: str
    phase: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservationRow:
    """A member of a committed training round, for client selection."""

    round: int
    client: str
    phase: str
    offered_at: float | None
    closed_at: float | None
    accepted_at: float | None
    training: dict[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateColumns:
    """What is stored of an update.

    Attributes:
        round: in which its client was asked.
        identity: hash of header and checksum; equal for repeats of an upload.
        file: name in the spool; empty when the update carries no tensors.
        training: num_examples and metrics, as `{"num_examples": n, "values": {...}}`.
        evaluation: likewise.
        counts_in: the round whose sum it is in; None for `round`.
        devices: whose updates it sums; None for 1.
        members: of a site that names them, a `fedloom.protocol.updates.site_members.Tree`.
        gate: that accepted it; None for the server that drives.
        sealed_in: file of the gate's sum that has it; None if its body is to be folded.
    """

    run: str
    round: int
    client: str
    identity: str
    file: str
    size_bytes: int
    weight: float
    norm: float
    training: dict[str, Any] = field(default_factory=dict)
    evaluation: dict[str, Any] = field(default_factory=dict)
    counts_in: int | None = None
    devices: int | None = None
    members: list[dict[str, Any]] | None = None
    gate: str | None = None
    sealed_in: str | None = None

    @property
    def counted(self) -> int:
        """The round whose sum it is in."""
        return self.round if self.counts_in is None else self.counts_in


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRow(UpdateColumns):
    """An accepted update; `repeats` are uploads of it after its acceptance, None for none."""

    accepted_at: float
    staleness: int | None
    repeats: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedRow:
    """An update that counts in a round; `round` is that in which its client was asked.

    `devices` are those whose updates it sums; None for 1. `members` are their names, if known.
    `gate` and `sealed_in` are as in `UpdateColumns`.
    """

    client: str
    round: int
    file: str
    staleness: int | None
    weight: float = 1.0
    devices: int | None = None
    members: list[dict[str, Any]] | None = None
    gate: str | None = None
    sealed_in: str | None = None

    @property
    def num_devices(self) -> int:
        """Devices whose updates it sums."""
        return self.devices or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsRow:
    """The metrics of an update that counts in a round."""

    client: str
    training: dict[str, Any]
    evaluation: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveRow:
    """The metrics of a committed round.

    Attributes:
        bytes_so_far: up and down, of all rounds of the run up to this one, abandoned ones too.
    """

    number: int
    kind: str
    closed_at: float | None
    training: dict[str, Any] | None
    evaluation: dict[str, Any] | None
    privacy: dict[str, Any] | None
    bytes_so_far: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCost:
    """The cost of a run's rounds so far."""

    bytes_up: int
    bytes_down: int
    counted: int
    retries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewalRow:
    """A client's latest renewed certificate.

    Attributes:
        key: SHA-256 of its public key's DER, hex.
        chain: it and its authority, in PEM.
    """

    issued_at: float
    not_after: float
    key: str
    chain: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Equal refusals: of one client for one round, with one code.

    Attributes:
        at: when the latest was, Unix seconds.
        client: empty for unauthenticated peers.
        run: of the call; empty if the call concerned none.
        round: of the call; 0 if the call concerned none.
        code: of the refusals.
        message: of the latest.
        detail: of the latest, for operators.
        times: their number.
    """

    at: float
    client: str
    run: str
    round: int
    code: str
    message: str
    detail: str = ""
    times: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalRow(Refused):
    """Refusals in the ledger."""

    id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalCount:
    """The count of a refusal code and of its clients, with one example."""

    code: str
    times: int
    clients: int
    client: str | None
    message: str
    last: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRow:
    """A model that a run committed or began with (round 0).

    Attributes:
        state: note of the strategy's state; None if it was not kept.
        pruned: None while its file is kept; see `fedloom.server.ledger.prunes`.
    """

    run: str
    round: int
    digest: str
    size_bytes: int
    created_at: float
    state: str | None
    pruned: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedModel:
    """A model whose file is to be removed."""

    run: str
    round: int
    digest: str
    state: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginRow:
    """A round that committed a model, or a run that began with it (round 0: no round columns)."""

    run: str
    round: int
    created_at: float
    size_bytes: int
    model_in: str | None
    kind: str | None
    undone_at: float | None
    training: dict[str, Any] | None
    privacy: dict[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContributorRow:
    """A client whose update is in a round's sum."""

    client: str
    weight: float
    staleness: int | None
    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRow:
    """The evaluation of the model that a committed round began with."""

    model_in: str
    run: str
    number: int
    evaluation: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionRow:
    """A model that an operator promoted; the id rises with every promotion."""

    id: int
    at: float
    run: str
    round: int
    digest: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRow:
    """A one-time token of a device, without its secret."""

    id: str
    client: str
    created_at: float
    expires_at: float
    used_at: float | None
    study: str | None = None
    devices: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HashedTokenRow(TokenRow):
    """A one-time token with the hash of its secret."""

    secret_hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRow:
    """A client.

    Attributes:
        seen_at: when it last connected or disconnected.
        version: of its SDK, as reported.
        hold: quarantine or drain; None for neither.
        note: the operator's.
        failures: recent failed and refused tasks; None for none.
        failed_at: when its last failed or refused task ended; None without any.
        failed_why: the error of that task.
        failed_run: its run.
        failed_round: its round.
        certificate_until: when its newest certificate ends.
        devices: most in a sum of this site; None or 0 for a device.
        due_at: when it checks in next; None for a client that holds a stream.
    """

    name: str
    status: str
    enrolled_at: float
    revoked_at: float | None
    seen_at: float | None
    version: str | None
    hold: str | None
    hold_reason: str | None
    held_at: float | None
    note: str | None
    failures: int | None = None
    failed_at: float | None = None
    failed_why: str | None = None
    failed_run: str | None = None
    failed_round: int | None = None
    devices: int | None = None
    due_at: float | None = None
    study: str | None = None
    certificate_until: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientDetailRow(ClientRow):
    """A client with its labels and its parts in rounds.

    Attributes:
        labels: the operator's.
        own_labels: the device's.
        phases: number of rounds by its phase in them.
        last_counted_at: when its last update was accepted.
        staleness: mean of its updates; None without any.
    """

    labels: dict[str, str] = field(default_factory=dict)
    own_labels: dict[str, str] = field(default_factory=dict)
    phases: dict[str, int] = field(default_factory=dict)
    last_counted_at: float | None = None
    staleness: float | None = None
