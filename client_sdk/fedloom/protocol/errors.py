"""The errors of fedloom: one tree, split by who must act, each with its exit code.

    FedloomError
    ├── UsageError            this side: a wrong setting, file or argument         exit 2
    ├── Refusal               the peer: its request was refused, with a code       exit 3
    ├── DeniedError           this side: no permission for the action              exit 3
    ├── IntegrityError        the environment: stored bytes have changed           exit 4
    └── UnavailableError      the environment: unreachable or full; retry later    exit 5

A message says what was expected, what was received and what to do. Only a refusal's `code` and
message are sent to the peer; its `detail` is logged. A
refusal is one line of `Code`.
"""

from enum import StrEnum
from typing import Literal, Self


class FedloomError(Exception):
    """Base class of every error that fedloom raises.

    Attributes:
        exit_code: exit status of a command that ends with this error.
    """

    exit_code = 1


class UsageError(FedloomError):
    """A setting, a file or an argument is not valid."""

    exit_code = 2


class DeniedError(FedloomError):
    """An operator is not authenticated, or lacks the permission for the action."""

    exit_code = 3


class IntegrityError(FedloomError):
    """Stored bytes differ from what was written."""

    exit_code = 4


class UnavailableError(FedloomError):
    """The peer, or a resource, is not available right now."""

    exit_code = 5


class Reaction(StrEnum):
    """Our client's reaction to a refusal."""

    DROP = "drop it"
    RESEND = "send again"
    RENEW = "renew late"
    STOP = "stop"


class Code(StrEnum):
    """Why a request was refused; the value is sent to the peer and stored in the ledger.

    One line per code: its value, its gRPC status, the client's reaction, and whether the update is
    at fault.

    Attributes:
        status: name of the `grpc.StatusCode`.
        reaction: of our client.
        blames_update: the update is at fault: the same bytes would be refused again, and the round
            replaces its client.
    """

    status: str
    reaction: Reaction
    blames_update: bool

    def __new__(
        cls,
        value: str,
        status: str = "INVALID_ARGUMENT",
        reaction: Reaction = Reaction.DROP,
        at_fault: Literal["", "update"] = "",
    ) -> Self:
        """Build a member from its line."""
        code = str.__new__(cls, value)
        code._value_ = value
        code.status, code.reaction = status, reaction
        code.blames_update = at_fault == "update"
        return code

    # the round
    STALE_ROUND = "stale_round", "FAILED_PRECONDITION"
    FUTURE_ROUND = "future_round", "FAILED_PRECONDITION"
    UNKNOWN_RUN = "unknown_run", "NOT_FOUND"
    ROUND_CLOSED = "round_closed", "FAILED_PRECONDITION"
    NOT_IN_COHORT = "not_in_cohort", "PERMISSION_DENIED"
    CONFLICTING_UPDATE = "conflicting_update", "ALREADY_EXISTS"
    WRONG_MODEL = "wrong_model", "FAILED_PRECONDITION", Reaction.DROP, "update"
    MASKING_REFUSED = "masking_refused", "FAILED_PRECONDITION"
    # the update
    MALFORMED = "malformed", "INVALID_ARGUMENT", Reaction.DROP, "update"
    UNKNOWN_TENSOR = "unknown_tensor", "INVALID_ARGUMENT", Reaction.DROP, "update"
    DUPLICATE_TENSOR = "duplicate_tensor", "INVALID_ARGUMENT", Reaction.DROP, "update"
    WRONG_SHAPE = "wrong_shape", "INVALID_ARGUMENT", Reaction.DROP, "update"
    WRONG_DTYPE = "wrong_dtype", "INVALID_ARGUMENT", Reaction.DROP, "update"
    WRONG_CODEC = "wrong_codec", "INVALID_ARGUMENT", Reaction.DROP, "update"
    NOT_FINITE = "not_finite", "INVALID_ARGUMENT", Reaction.DROP, "update"
    MAGNITUDE_TOO_LARGE = "magnitude_too_large", "INVALID_ARGUMENT", Reaction.DROP, "update"
    NORM_TOO_LARGE = "norm_too_large", "INVALID_ARGUMENT", Reaction.DROP, "update"
    WEIGHT_OUT_OF_RANGE = "weight_out_of_range", "INVALID_ARGUMENT", Reaction.DROP, "update"
    TOO_LARGE = "too_large", "RESOURCE_EXHAUSTED", Reaction.DROP, "update"
    TRUNCATED = "truncated", "DATA_LOSS", Reaction.RESEND
    OVERLONG = "overlong", "INVALID_ARGUMENT", Reaction.DROP, "update"
    BAD_CHECKSUM = "bad_checksum", "DATA_LOSS", Reaction.RESEND
    # the peer
    NO_CERTIFICATE = "no_certificate", "UNAUTHENTICATED"
    UNKNOWN_CLIENT = "unknown_client", "UNAUTHENTICATED", Reaction.STOP
    WRONG_IDENTITY = "wrong_identity", "PERMISSION_DENIED", Reaction.STOP
    REVOKED = "revoked", "PERMISSION_DENIED", Reaction.STOP
    QUARANTINED = "quarantined", "PERMISSION_DENIED"
    EXPIRED = "expired", "UNAUTHENTICATED", Reaction.RENEW
    BAD_TOKEN = "bad_token", "PERMISSION_DENIED"
    BAD_CSR = "bad_csr", "INVALID_ARGUMENT"
    BAD_SIGNATURE = "bad_signature", "PERMISSION_DENIED"
    VERSION_UNSUPPORTED = "version_unsupported", "FAILED_PRECONDITION", Reaction.STOP
    # the server
    UNKNOWN_MODEL = "unknown_model", "NOT_FOUND"
    BUSY = "busy", "UNAVAILABLE", Reaction.RESEND
    STALLED = "stalled", "RESOURCE_EXHAUSTED", Reaction.RESEND
    OUT_OF_SPACE = "out_of_space", "UNAVAILABLE", Reaction.RESEND


MAX_MESSAGE = 600
"""Characters of a refusal's message: its escaped form must fit into 8 KiB of metadata."""


def printable(text: str, limit: int = MAX_MESSAGE) -> str:
    r"""A text from a peer as one printable line that is safe to log, store and send.

    >>> printable("a\nb")
    'a\\nb'

    Args:
        text: any string, lone surrogates and control characters included.
        limit: most characters of the result.
    """
    kept = text[: limit + 1]
    if not kept.isprintable():
        kept = "".join(c if c.isprintable() else repr(c)[1:-1] for c in kept)
    return kept if len(kept) <= limit else kept[: limit - 1] + "…"


class Refusal(FedloomError):  # noqa: N818 - a refusal is the field's word for it
    """A peer's request was refused.

    The message may quote what the peer sent, so it is made short and printable here, once, for the
    log, the ledger and the wire.

    Attributes:
        code: the reason.
        detail: further text for the log only.
    """

    exit_code = 3

    def __init__(self, code: Code, message: str, *, detail: str = "") -> None:
        super().__init__(printable(message))
        self.code = code
        self.detail = printable(detail)
