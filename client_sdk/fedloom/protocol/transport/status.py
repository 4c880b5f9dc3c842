"""The gRPC status of each refusal; the refusal itself travels in the trailing metadata."""

import grpc

from fedloom.protocol.errors import Code

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


def grpc_status(code: Code) -> grpc.StatusCode:
    """The gRPC status of a call that is refused with this code."""
    return _STATUS.get(code, grpc.StatusCode.INVALID_ARGUMENT)
