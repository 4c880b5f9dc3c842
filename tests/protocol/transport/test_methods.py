"""Error messages of failed calls."""

import os
import subprocess
import sys

import grpc
import pytest

from fedloom.protocol.errors import Code, Refusal, UnavailableError
from fedloom.protocol.transport import methods


def _failed(details, trailing=()):
    metadata = grpc.aio.Metadata(*trailing)
    return grpc.aio.AioRpcError(
        grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), metadata, details=details
    )


def test_a_proxy_is_named_in_errors(monkeypatch):
    """Errors of gRPC show the proxy's address as the server's; its password is not repeated."""
    monkeypatch.setenv("https_proxy", "http://me:secret@proxy.example.org:3128")
    monkeypatch.setenv("no_proxy", "localhost,10.0.0.0/8,.elsewhere.org")
    said = str(methods.error_from_rpc(_failed("Connection refused"), "fl.example.org:7443"))
    assert "https_proxy" in said
    assert "proxy.example.org:3128" in said
    assert "no_proxy=fl.example.org" in said
    assert "secret" not in said
    for peer in ("localhost:7443", "10.1.2.3:7443", "fl.elsewhere.org:7443"):
        assert "proxy" not in str(methods.error_from_rpc(_failed("Connection refused"), peer))


def test_a_refusal_survives_the_wire():
    """In the trailing metadata."""
    sent = Refusal(Code.REVOKED, "The client 'ward-3' was revoked.")
    error = methods.error_from_rpc(
        _failed("", methods.refusal_metadata(sent)), "fl.example.org:7443"
    )
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
def test_grpc_errors_are_explained(details, hint):
    """With a remedy, if known."""
    error = methods.error_from_rpc(_failed(details), "fl.example.org:7443")
    assert isinstance(error, UnavailableError)
    assert str(error).startswith("Expected an answer from fl.example.org:7443, got UNAVAILABLE: ")
    assert hint in str(error)
    assert str(error).endswith(".")
    assert ".." not in str(error)


WATCHING = """
import os, sys

class Finder:
    @staticmethod
    def find_spec(name, *_):
        if name == "grpc":
            print(*(os.environ.get(f"GRPC_{each}") for each in (
                "ENABLE_FORK_SUPPORT", "DNS_RESOLVER", "SSL_CIPHER_SUITES")))

sys.meta_path.insert(0, Finder)
import importlib
importlib.import_module(sys.argv[1])
"""


@pytest.mark.long
@pytest.mark.parametrize(
    "module",
    [
        "fedloom.client",
        "fedloom.client.agent.agent",
        "fedloom.protocol.transport.methods",
        "fedloom.protocol.transport.status",
        "fedloom.server.app",
        "fedloom.server.fleet.service",
    ],
)
def test_grpc_is_configured_before_its_import(module):
    """It reads its environment once, else forked training would abort and TLS 1.2 be accepted."""
    known = {k: v for k, v in os.environ.items() if not k.startswith("GRPC_")}
    done = subprocess.run(
        [sys.executable, "-c", WATCHING, module],
        env=known, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[:1] == ["0 native ECDHE-PSK-CHACHA20-POLY1305"]
