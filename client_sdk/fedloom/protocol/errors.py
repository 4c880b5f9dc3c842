"""The errors of fedloom: one tree, split by who must act, each with its exit code.

    FedloomError
    ├── UsageError            this side: a wrong setting, file or argument         exit 2
    ├── Refusal               the peer: its request was refused, with a code       exit 3
    ├── DeniedError           this side: no permission for the action              exit 3
    ├── IntegrityError        the environment: stored bytes have changed           exit 4
    └── UnavailableError      the environment: unreachable or full; retry later    exit 5

A message says what was expected, what was received and what to do. Only a refusal's `code` and
message are sent to the peer; its `detail` is logged. `transport.status` maps codes to gRPC's.
"""

from enum import StrEnum


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


class Code(StrEnum):
    """Why a request was refused; the value is sent to the peer and stored in the ledger."""

    # the round
    STALE_ROUND = "stale_round"
    FUTURE_ROUND = "future_round"
    UNKNOWN_RUN = "unknown_run"
    ROUND_CLOSED = "round_closed"
    NOT_IN_COHORT = "not_in_cohort"
    CONFLICTING_UPDATE = "conflicting_update"
    WRONG_MODEL = "wrong_model"
    # the update
    MALFORMED = "malformed"
    UNKNOWN_TENSOR = "unknown_tensor"
    DUPLICATE_TENSOR = "duplicate_tensor"
    WRONG_SHAPE = "wrong_shape"
    WRONG_DTYPE = "wrong_dtype"
    WRONG_CODEC = "wrong_codec"
    NOT_FINITE = "not_finite"
    MAGNITUDE_TOO_LARGE = "magnitude_too_large"
    NORM_TOO_LARGE = "norm_too_large"
    WEIGHT_OUT_OF_RANGE = "weight_out_of_range"
    TOO_LARGE = "too_large"
    TRUNCATED = "truncated"
    OVERLONG = "overlong"
    BAD_CHECKSUM = "bad_checksum"
    # the peer
    NO_CERTIFICATE = "no_certificate"
    UNKNOWN_CLIENT = "unknown_client"
    WRONG_IDENTITY = "wrong_identity"
    REVOKED = "revoked"
    QUARANTINED = "quarantined"
    EXPIRED = "expired"
    BAD_TOKEN = "bad_token"  # noqa: S105 - a code, not a secret
    BAD_CSR = "bad_csr"
    BAD_SIGNATURE = "bad_signature"
    VERSION_UNSUPPORTED = "version_unsupported"
    # the server
    UNKNOWN_MODEL = "unknown_model"
    BUSY = "busy"
    OUT_OF_SPACE = "out_of_space"

    @property
    def blames_update(self) -> bool:
        """Whether the update itself is at fault: sending it again would be refused again."""
        return self in _BAD_UPDATE


_BAD_UPDATE = frozenset(
    {
        Code.WRONG_MODEL,
        Code.MALFORMED,
        Code.UNKNOWN_TENSOR,
        Code.DUPLICATE_TENSOR,
        Code.WRONG_SHAPE,
        Code.WRONG_DTYPE,
        Code.WRONG_CODEC,
        Code.NOT_FINITE,
        Code.MAGNITUDE_TOO_LARGE,
        Code.NORM_TOO_LARGE,
        Code.WEIGHT_OUT_OF_RANGE,
        Code.TOO_LARGE,
        Code.OVERLONG,
    }
)


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
