"""What a failed call is said to mean."""

import grpc
import pytest

from fedloom.protocol import wire
from fedloom.protocol.errors import Code, Refusal, UnavailableError


def _failed(details, trailing=()):
    metadata = grpc.aio.Metadata(*trailing)
    return grpc.aio.AioRpcError(
        grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), metadata, details=details
    )


def test_a_refusal_comes_back_as_it_was_sent():
    """Code and message cross the wire in the trailing metadata."""
    sent = Refusal(Code.REVOKED, "The client 'ward-3' was revoked.")
    error = wire.error_from_rpc(_failed("", wire.refusal_metadata(sent)), "fl.example.org:7443")
    assert isinstance(error, Refusal)
    assert (error.code, str(error)) == (sent.code, str(sent))


@pytest.mark.parametrize(
    ("details", "hint"),
    [
        ("Stream removed (Socket closed)", "check both clocks"),
        ("Hostname Verification Check failed.", "add this one to `names`"),
        ("Method not found!", "enrolment port"),
        ("Connection refused", "Connection refused."),
    ],
)
def test_what_grpc_says_is_explained(details, hint):
    """A sentence, with what to do where that is known."""
    error = wire.error_from_rpc(_failed(details), "fl.example.org:7443")
    assert isinstance(error, UnavailableError)
    assert str(error).startswith("Expected an answer from fl.example.org:7443, got UNAVAILABLE: ")
    assert hint in str(error)
    assert str(error).endswith(".")
    assert ".." not in str(error)
