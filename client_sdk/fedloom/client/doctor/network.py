"""Checks of the network: names, routes, TLS, the clocks, the bandwidth.

Each step needs the one before it: fix the first that fails; the rest is skipped. The last steps
call `Measure` of the server, which does not disturb a connected agent.
"""

import hashlib
import socket
import ssl
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import grpc

from fedloom.client.config import ClientConfig
from fedloom.client.doctor.finding import CheckResult, fail, ok, skip, warn
from fedloom.client.network.connection import CLOCK_S, channel_options
from fedloom.client.network.diagnosis import diagnose
from fedloom.client.state.identity_files import ENROL, StoredIdentity
from fedloom.protocol.errors import Code, Refusal, UnavailableError, UsageError
from fedloom.protocol.transport import methods
from fedloom.protocol.transport.proxies import proxy_for
from fedloom.protocol.trust.bootstrap import presented_chain, verified_root
from fedloom.protocol.trust.identity import chain_pem

CONNECT_S = 5.0
ANSWER_S = 10.0
MEASURE_S = 1.0
"""Time for the measurement of each direction."""
SLOW_TRANSFER_S = 600.0
Metadata: TypeAlias = tuple[tuple[str, str], ...]
here_s = time.time
"""This device's clock."""
_SIZES = (1 << 14, 1 << 16, 1 << 18, 1 << 20)


def names(host: str) -> tuple[list[str], CheckResult]:
    """Resolve a host; returns its addresses, or an empty list if there are none."""
    begun = time.monotonic()
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        return [], fail(
            "name", f"{host} has no address: {error.strerror or error}",
            "check `server` in client.toml and this device's DNS (/etc/resolv.conf), or put the "
            "name into /etc/hosts",
        )  # fmt: skip
    addresses = list(dict.fromkeys(str(each[4][0]) for each in found))
    if addresses == [host]:
        return addresses, ok("name", f"{host} is an address")
    took_s = time.monotonic() - begun
    said = f"{host} is {', '.join(addresses)}"
    if took_s > 2.0:
        return addresses, warn(
            "name", f"{said}, which took {took_s:.1f} s",
            "check the DNS servers of this device: one of them does not answer",
        )  # fmt: skip
    return addresses, ok("name", said)


def route(host: str, port: int) -> tuple[bool, CheckResult]:
    """Open a TCP connection; returns whether it succeeded."""
    begun = time.monotonic()
    try:
        with socket.create_connection((host, port), CONNECT_S) as plain:
            took_ms = 1000 * (time.monotonic() - begun)
            ours = plain.getsockname()[0]
    except ConnectionRefusedError:
        return False, fail(
            "route", f"{host} is reachable, but nothing listens on port {port}",
            "start the server there, or check the port in client.toml; other checks that need "
            "the server are skipped",
        )  # fmt: skip
    except TimeoutError:
        return False, fail(
            "route", f"{host}:{port} does not answer within {CONNECT_S:g} s",
            f"check that the server is on, and that no firewall drops TCP port {port}",
        )  # fmt: skip
    except OSError as error:
        return False, fail(
            "route", f"{host}:{port} cannot be reached: {error.strerror or error}",
            "check this device's network: cable or wireless, address, gateway (`ip route`)",
        )  # fmt: skip
    return True, ok("route", f"{host}:{port} from {ours}, connected in {took_ms:.1f} ms")


def proxy(host: str) -> CheckResult | None:
    """Report a proxy of the environment, which the agent uses and the other checks do not."""
    found = proxy_for(host)
    if found is None:
        return None
    name, where = found
    return warn(
        "proxy", f"{name} sends the agent through {where}, which the checks of route and TLS do "
        "not use", f"set no_proxy={host} if the server is reachable without it"
    )  # fmt: skip


def enrolment(address: str) -> CheckResult:
    """Check that the enrolment port, which renews expired certificates, is reachable."""
    if not address:
        return skip("enrolment", "no enrolment port in the settings: a certificate that expires "
                    "while this device is off needs a new token")  # fmt: skip
    host, _, port = address.rpartition(":")
    reached, why = route(host.strip("[]"), int(port)) if port.isdigit() else (False, None)
    if reached:
        return ok("enrolment", f"{address} is reachable, to renew an expired certificate")
    return warn(
        "enrolment", why.said if why else f"expected host:port, got {address!r}",
        "nothing now: only a device whose certificate expired while it was off needs this port",
    )  # fmt: skip


def tls(config: ClientConfig, found: StoredIdentity) -> CheckResult:
    """Check that the server is of this federation and accepts this device's certificate."""
    host, port = split(config.server)
    try:
        chain = presented_chain(host, port, CONNECT_S)
    except (UnavailableError, UsageError) as error:
        return fail(
            "tls", str(error), "check that no proxy intercepts TLS, and that the port is the "
            "fleet's"
        )  # fmt: skip
    pin = hashlib.sha256(ssl.PEM_cert_to_DER_cert(found.root_pem.decode())).digest()
    try:
        verified_root(chain, host, pin, datetime.now(UTC))
    except Refusal as refusal:
        return fail("tls", _of_server(refusal, host), _mend_server(refusal))
    refused = diagnose(config.server, found.path, found.root_pem)
    if refused is not None:
        return fail("tls", str(refused), f"set the clock if it is wrong, or {ENROL}")
    return ok("tls", "TLS 1.3, and this is the server that this device enrolled with")


def _of_server(refusal: Refusal, host: str) -> str:
    if refusal.code is Code.BAD_TOKEN:  # its own message is about a token
        return (
            f"{host} does not present the root certificate that this device received at "
            "enrolment: it is another server, or a proxy intercepts TLS"
        )
    return str(refusal)


def _mend_server(refusal: Refusal) -> str:
    if refusal.code is Code.EXPIRED:
        return "set this device's clock (`timedatectl set-ntp true`)"
    if refusal.code is Code.BAD_TOKEN:
        return f"check the address in client.toml and proxies on the way; for a new server {ENROL}"
    return "connect by a name that the server has, or add this one to `names` in its server.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpeed:
    """Measured connection to the server.

    Attributes:
        ahead_s: this device's clock minus the server's; error up to half a round trip.
        round_trip_s: of the smallest exchange.
        up_mbit_s: upload rate, 10^6 bit/s.
        down_mbit_s: download rate, 10^6 bit/s.
    """

    ahead_s: float
    round_trip_s: float
    up_mbit_s: float
    down_mbit_s: float


def measure(config: ClientConfig, found: StoredIdentity | None) -> LinkSpeed | None:
    """Ask the server for its time and transfer bytes both ways, about a second each. Blocks.

    Returns:
        None if the server is too old for this call.

    Raises:
        Refusal: the server refuses this client.
        UnavailableError: it does not answer.
    """
    with _channel(config, found) as channel:
        ask: Any = channel.unary_unary(methods.MEASURE)
        plaintext = config.plaintext
        metadata: Metadata = ((methods.CLIENT_KEY, plaintext),) if plaintext else ()

        def exchange(up: int, down: int) -> tuple[float, float]:
            begun = time.monotonic()
            request = methods.MEASURE_HEAD.pack(down) + bytes(up)
            reply = ask(request, timeout=ANSWER_S, metadata=metadata)
            return methods.MEASURE_REPLY.unpack_from(reply)[0], time.monotonic() - begun

        try:
            exchange(0, 0)  # connects
            server_s, round_trip_s = exchange(0, 0)
            ahead_s = here_s() - round_trip_s / 2 - server_s
            up = _rate(lambda size: exchange(size, 0)[1], round_trip_s)
            down = _rate(lambda size: exchange(0, size)[1], round_trip_s)
        except grpc.RpcError as error:
            failed: Any = error  # a call, with the attributes of an AioRpcError
            if failed.code() is grpc.StatusCode.UNIMPLEMENTED:
                _check_fleet(channel, config, metadata)
                return None
            raise methods.error_from_rpc(failed, config.server) from error
    return LinkSpeed(ahead_s=ahead_s, round_trip_s=round_trip_s, up_mbit_s=up, down_mbit_s=down)


def _check_fleet(channel: grpc.Channel, config: ClientConfig, metadata: Metadata) -> None:
    """Check by a call that older servers support that this is a fleet's port."""
    try:
        ask: Any = channel.unary_unary(methods.PROMOTED)
        ask(b"", timeout=ANSWER_S, metadata=metadata)
    except grpc.RpcError as error:
        failed: Any = error
        if failed.code() is grpc.StatusCode.UNIMPLEMENTED:
            raise UnavailableError(
                f"clients cannot connect at {config.server}: it may be the enrolment port"
            ) from None
        raise methods.error_from_rpc(failed, config.server) from error


def _rate(seconds_for: Callable[[int], float], round_trip_s: float) -> float:
    """Rate of the largest transfers that time allows, 10^6 bit/s: small ones measure latency."""
    begun, found = time.monotonic(), [0.0]
    for size in (*_SIZES, *[_SIZES[-1]] * 16):
        took_s = seconds_for(size)
        # Subtract the round trip, but at most half of the time, because it varies.
        found.append(size * 8e-6 / max(took_s - round_trip_s, took_s / 2))
        if time.monotonic() - begun > MEASURE_S:
            break
    return statistics.median(found[-9:])


def _channel(config: ClientConfig, found: StoredIdentity | None) -> grpc.Channel:
    if found is None:
        return grpc.insecure_channel(config.server, channel_options(config))
    pem = found.pem
    credentials = grpc.ssl_channel_credentials(found.root_pem, pem, chain_pem(pem))
    return grpc.secure_channel(config.server, credentials, channel_options(config))


def clock(measured: LinkSpeed | None, found: StoredIdentity | None, now: datetime) -> CheckResult:
    """Compare this device's clock with the server's, or else with the certificate's validity."""
    if measured is not None:
        ahead_s = measured.ahead_s
        where = "ahead of" if ahead_s > 0 else "behind"
        said = f"{_span(abs(ahead_s))} {where} the server's"
        if abs(ahead_s) > CLOCK_S:
            return warn(
                "clock", said, "set it (`timedatectl set-ntp true`): with a wrong clock, valid "
                "certificates seem expired or not yet valid"
            )  # fmt: skip
        return ok("clock", said)
    if found is not None and now < found.begin:
        return fail(
            "clock", f"{now:%Y-%m-%d %H:%M} UTC is before the start of this device's certificate, "
            f"{found.begin:%Y-%m-%d %H:%M} UTC", "set it (`timedatectl set-ntp true`)"
        )  # fmt: skip
    return skip("clock", f"{now:%Y-%m-%d %H:%M} UTC; not compared with the server's")


def _span(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    return f"{seconds:.0f} s" if seconds < 120 else str(timedelta(seconds=round(seconds)))


def bandwidth(measured: LinkSpeed, config: ClientConfig, model_bytes: int) -> CheckResult:
    """Estimate the time of a round's transfers from the measured rates and the set limits."""
    caps = config.budgets.download_mbit_s, config.budgets.upload_mbit_s
    said = f"{_mbit(measured.down_mbit_s)} down, {_mbit(measured.up_mbit_s)} up"
    rates = [
        rate if cap is None else min(rate, cap)
        for rate, cap in zip((measured.down_mbit_s, measured.up_mbit_s), caps, strict=True)
    ]
    if any(cap is not None for cap in caps):
        said += f", limited to {_mbit(rates[0])} and {_mbit(rates[1])}"
    size, what = (model_bytes, "the last model") if model_bytes else (40_000_000, "40 MB")
    took_s = sum(size * 8e-6 / max(rate, 1e-9) for rate in rates)
    said += f"; {what} and its update take about {_span(took_s)}"
    if took_s > SLOW_TRANSFER_S:
        return warn(
            "bandwidth", said, "set longer deadlines, use compressed updates, or raise the limits "
            "in [budgets]"
        )  # fmt: skip
    return ok("bandwidth", said)


def _mbit(rate: float) -> str:
    return f"{rate:,.0f} Mbit/s" if rate >= 10 else f"{rate:.2g} Mbit/s"


def split(address: str) -> tuple[str, int]:
    """Host, without brackets, and port of an address."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
