"""The gRPC status of each refusal; the refusal is sent in the trailing metadata."""

import grpc

from fedloom.protocol.errors import Code


def grpc_status(code: Code) -> grpc.StatusCode:
    """Return the gRPC status of a call that is refused with this code."""
    return grpc.StatusCode[code.status]
