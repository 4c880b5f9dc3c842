"""The errors of fedloom: one tree, split by whose fault it was.

    FedloomError
    ├── UsageError            ours to prevent: wrong settings or arguments        exit 2
    ├── Refusal               the peer's: a request that we turn away, typed      exit 3
    ├── DeniedError           ours to mend: who we are may not do this            exit 3
    ├── IntegrityError        the world's: stored bytes are not what they were    exit 4
    └── UnavailableError      the world's: not reachable, no room, try later      exit 5

A message says what was expected, what came and what to do. Only `code` and the message cross the
wire; `detail` goes to the log alone.
"""

from enum import StrEnum

import grpc


class FedloomError(Exception):
    """Root of the tree.

    Attributes:
        exit_code: what the command line exits with when this ends a command.
    """

    exit_code = 1


class UsageError(FedloomError):
    """A setting, a file or an argument is not what it must be."""

    exit_code = 2


class DeniedError(FedloomError):
    """An operator has not proved who they are, or may not do what they ask for."""

    exit_code = 3


class IntegrityError(FedloomError):
    """Bytes at rest differ from what was written."""

    exit_code = 4


class UnavailableError(FedloomError):
    """The other side, or a resource, is not there right now."""

    exit_code = 5


class Code(StrEnum):
    """Why a request was refused; the value is what travels and what is stored."""

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
    def status(self) -> grpc.StatusCode:
        """The gRPC status that carries this refusal."""
        return _STATUS.get(self, grpc.StatusCode.INVALID_ARGUMENT)

    @property
    def blames_update(self) -> bool:
        """Whether sending the same update again would be refused again."""
        return self in _BAD_UPDATE


_STATUS = {
    Code.STALE_ROUND: grpc.StatusCode.FAILED_PRECONDITION,
    Code.FUTURE_ROUND: grpc.StatusCode.FAILED_PRECONDITION,
    Code.UNKNOWN_RUN: grpc.StatusCode.NOT_FOUND,
    Code.ROUND_CLOSED: grpc.StatusCode.FAILED_PRECONDITION,
    Code.NOT_IN_COHORT: grpc.StatusCode.PERMISSION_DENIED,
    Code.CONFLICTING_UPDATE: grpc.StatusCode.ALREADY_EXISTS,
    Code.WRONG_MODEL: grpc.StatusCode.FAILED_PRECONDITION,
    Code.TOO_LARGE: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Code.TRUNCATED: grpc.StatusCode.DATA_LOSS,
    Code.BAD_CHECKSUM: grpc.StatusCode.DATA_LOSS,
    Code.NO_CERTIFICATE: grpc.StatusCode.UNAUTHENTICATED,
    Code.UNKNOWN_CLIENT: grpc.StatusCode.UNAUTHENTICATED,
    Code.WRONG_IDENTITY: grpc.StatusCode.PERMISSION_DENIED,
    Code.REVOKED: grpc.StatusCode.PERMISSION_DENIED,
    Code.QUARANTINED: grpc.StatusCode.PERMISSION_DENIED,
    Code.EXPIRED: grpc.StatusCode.UNAUTHENTICATED,
    Code.BAD_TOKEN: grpc.StatusCode.PERMISSION_DENIED,
    Code.BAD_SIGNATURE: grpc.StatusCode.PERMISSION_DENIED,
    Code.VERSION_UNSUPPORTED: grpc.StatusCode.FAILED_PRECONDITION,
    Code.UNKNOWN_MODEL: grpc.StatusCode.NOT_FOUND,
    Code.BUSY: grpc.StatusCode.UNAVAILABLE,
    Code.OUT_OF_SPACE: grpc.StatusCode.UNAVAILABLE,
}


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
"""Characters of a refusal's message: with its escapes it must fit into 8 KiB of metadata."""


def printable(text: str, limit: int = MAX_MESSAGE) -> str:
    r"""One line that can be logged, stored and sent, whatever a peer put into it.

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
    """A peer's request was turned away.

    What the peer sent may be quoted in the message, so it is kept short and printable here, once,
    for the log, the ledger and the wire.

    Attributes:
        code: the type of the refusal.
        detail: what only the log should hold.
    """

    exit_code = 3

    def __init__(self, code: Code, message: str, *, detail: str = "") -> None:
        super().__init__(printable(message))
        self.code = code
        self.detail = printable(detail)
