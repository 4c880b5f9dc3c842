"""Names, message types and transport settings of the gRPC methods; docs/protocol.md explains them.

Attend, Enrol, Renew and Promoted carry protobuf messages. Download and Upload are raw-bytes
methods: their first messages are protobuf, followed by bare tensor bytes, which is about 1.5 times
as fast as a protobuf `bytes` field. So gRPC has no serialisers for these methods, and each side
uses the functions here. A server parses every request this way, and not in gRPC, so that invalid
bytes get a typed refusal.
"""

import struct
from contextlib import suppress
from typing import Final, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from fedloom.protocol.errors import Code, FedloomError, Refusal, UnavailableError, printable
from fedloom.protocol.transport.proxies import proxy_hint
from fedloom.protocol.v1 import fleet_pb2

FLEET_SERVICE: Final = "fedloom.v1.Fleet"
ENROLMENT_SERVICE: Final = "fedloom.v1.Enrolment"

ATTEND: Final = f"/{FLEET_SERVICE}/Attend"
RENEW: Final = f"/{FLEET_SERVICE}/Renew"
DOWNLOAD: Final = f"/{FLEET_SERVICE}/Download"
LEAVE: Final = f"/{FLEET_SERVICE}/Leave"
MEASURE: Final = f"/{FLEET_SERVICE}/Measure"
PROMOTED: Final = f"/{FLEET_SERVICE}/Promoted"
UPLOAD: Final = f"/{FLEET_SERVICE}/Upload"
ENROL: Final = f"/{ENROLMENT_SERVICE}/Enrol"
RENEW_LATE: Final = f"/{ENROLMENT_SERVICE}/RenewLate"

CHUNK_BYTES: Final = 1 << 20
"""Body bytes in one message; 1 to 2 MiB measured best, 64 KiB cost three times the CPU."""

MAX_MESSAGE_BYTES: Final = 2 * CHUNK_BYTES

OFFERED_MODEL_BYTES: Final = 512 << 10
"""Largest model that is sent with its offer: later messages of the stream wait behind it."""

MEASURE_HEAD: Final = struct.Struct(">I")
"""Start of a Measure request: bytes to send back, at most `CHUNK_BYTES`; padding follows."""
MEASURE_REPLY: Final = struct.Struct(">d")
"""Start of its reply: the server's Unix time in seconds; the requested bytes follow."""

REFUSAL_KEY: Final = "fedloom-refusal-bin"
CLIENT_KEY: Final = "fedloom-client"
"""Metadata with the client's name, without certificates (plaintext on loopback only)."""

COMMON_OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # Bandwidth probing grows windows until 32 uploaders hold over a gigabyte; a fixed look-ahead
    # keeps the rate and a fifth of the memory.
    ("grpc.http2.bdp_probe", 0),
    # A frame for each message: cutting megabytes into frames of 16 KiB costs 3 % of a large round.
    ("grpc.http2.max_frame_size", 1 << 20),
    ("grpc.http2.lookahead_bytes", 2 << 20),
    # Tensors do not gzip, and accepting it invites decompression bombs.
    ("grpc.compression_enabled_algorithms_bitset", 1),
    # Without the ping timeout a frozen peer is not noticed for a minute, whatever the keepalive.
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.ping_timeout_ms", 20_000),
)

LEAST_PING_S: Final = 20.0
"""Least silence before a ping: servers refuse more than one in 10 s."""


def pings(after_s: float) -> tuple[tuple[str, int], ...]:
    """Channel options that test a connection after so many seconds of silence."""
    return (
        ("grpc.keepalive_time_ms", round(1000 * after_s)),
        ("grpc.keepalive_permit_without_calls", 1),
        # Otherwise gRPC sends two, and then one a minute at most.
        ("grpc.http2.max_pings_without_data", 0),
    )


M = TypeVar("M", bound=Message)


def parse(kind: type[M], raw: object) -> M:
    """Read a protobuf message from a peer.

    Args:
        kind: expected message type.
        raw: bytes received, or the end of the stream.

    Raises:
        Refusal: MALFORMED.
    """
    name = kind.DESCRIPTOR.name
    if not isinstance(raw, bytes):
        raise Refusal(Code.MALFORMED, f"Expected {name}, got the end of the stream.")
    try:
        return kind.FromString(raw)
    except DecodeError:
        raise Refusal(
            Code.MALFORMED, f"Expected {name} as protobuf, got {len(raw)} other bytes."
        ) from None


def refusal_metadata(refusal: Refusal) -> tuple[tuple[str, bytes], ...]:
    """Trailing metadata that carries a refusal to the peer."""
    message = fleet_pb2.Refusal(code=refusal.code, message=str(refusal))
    return ((REFUSAL_KEY, message.SerializeToString()),)


def error_from_rpc(error: grpc.aio.AioRpcError, peer: str) -> FedloomError:
    """The error of a failed call: its refusal, or an unreachable or failing server."""
    for key, value in error.trailing_metadata() or ():
        if key == REFUSAL_KEY and isinstance(value, bytes):
            with suppress(DecodeError):
                message = fleet_pb2.Refusal.FromString(value)
                if message.code in set(Code):
                    return Refusal(Code(message.code), message.message)
    details = printable((error.details() or "").rstrip("."))
    hint = next((h for sign, h in _HINTS if sign in details), "")
    if error.code() is grpc.StatusCode.UNAVAILABLE:
        hint = proxy_hint(peer) or hint
    return UnavailableError(
        f"Expected an answer from {peer}, got {error.code().name}: {details}.{hint}"
    )


_HANDSHAKE = (
    " A server that closes the connection at once may not accept this certificate, or is not the"
    " one that issued it: check both clocks and that both belong to the same federation."
)
_OTHER_NAME = (
    " The server's certificate is for another name: connect by one that it has, or add"
    " this one to `names` in its server.toml and restart it."
)
_HINTS = (
    ("Socket closed", _HANDSHAKE),
    ("recvmsg:Connection reset", _HANDSHAKE),
    ("Hostname Verification", _OTHER_NAME),
    ("andshake", _HANDSHAKE),
    ("Method not found", " This may be the enrolment port: clients connect to the fleet's."),
)
"""A plain explanation of a gRPC error text."""
