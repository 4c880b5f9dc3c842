"""Settings of a server: `server.toml` in its state directory.

Secrets are never among them: keys live in `pki/` with mode 0600.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fedloom.protocol import tracing
from fedloom.protocol.errors import UsageError
from fedloom.protocol.transport import chunk_size
from fedloom.protocol.transport.methods import CHUNK_BYTES
from fedloom.server.access import oidc
from fedloom.server.access.oidc import OidcConfig

FILE = "server.toml"

_TABLES = ("oidc", "tracing", "flower")
"""For whoever wants them: docs/console-security.md, docs/metrics.md, docs/flower.md."""

AUTO = "auto"
"""Of `console`: on loopback, at the first port that is free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """How a server listens and what it grants.

    Attributes:
        federation: name of the federation, part of every identity.
        fleet: host:port for enrolled clients (mTLS).
        enrolment: host:port for devices with a token (server TLS).
        names: host names and addresses in the server's certificate.
        client_certificate_s: life of a client's certificate, seconds.
        late_renewal_s: how long after its end a client may still renew it by its key, on the
            enrolment port, seconds; 0 for never.
        max_fast_transfers: how many models or updates pass at full speed at once, each way; the
            rest wait unsent. Slow links have places of their own, 64 times as many.
        max_model_bytes: largest model a run may start from.
        keep_models: committed models kept of each run, beside its first, its current and every
            promoted one; 0 for all.
        chunk_bytes: of a model in one message; "auto" to find the fastest by measurement.
        console: host:port for the web console and remote operators; "auto" for 127.0.0.1:7445 or
            the next port that is free; empty for none. Off loopback it speaks TLS.
        console_certificate: its certificate chain in PEM, relative to the state directory; empty
            for one of the federation's own authority.
        console_key: the certificate's key in PEM; empty where it is in the same file.
        console_url: where operators reach it, where that is not the address itself: behind a
            reverse proxy, https://fl.example.org.
        database: SQLAlchemy URL; empty for `ledger.sqlite` in the state directory.
        metrics_open: whether programs on this machine may read `/metrics` without a token.
        tracing: URL of a collector that takes OTLP over HTTP; empty for none. In the file it is
            `endpoint` of the table [tracing].
        oidc: whom to believe who an operator is; None for passwords alone.
        flower: strategies of Flower that runs may ask for, as `flower:NAME`: name → `FILE.py:NAME`,
            relative to the state directory, or `MODULE:NAME`. This code runs in the server.
    """

    federation: str = "fedloom"
    fleet: str = "0.0.0.0:7443"
    enrolment: str = "0.0.0.0:7444"
    names: tuple[str, ...] = ("localhost", "127.0.0.1")
    client_certificate_s: float = 7 * 24 * 3600.0
    late_renewal_s: float = 7 * 24 * 3600.0
    max_fast_transfers: int = 8
    max_model_bytes: int = 1 << 40
    keep_models: int = 100
    chunk_bytes: chunk_size.Setting = CHUNK_BYTES
    console: str = AUTO
    console_certificate: str = ""
    console_key: str = ""
    console_url: str = ""
    database: str = ""
    metrics_open: bool = False
    tracing: str = ""
    oidc: OidcConfig | None = None
    flower: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check every setting."""
        for name in ("fleet", "enrolment"):
            split_address(getattr(self, name), name)
        if self.console not in ("", AUTO):
            split_address(self.console, "console")
        public = urlsplit(self.console_url)
        if self.console_url and (public.scheme not in ("http", "https") or not public.hostname):
            raise UsageError(f"Expected console_url as https://HOST, got {self.console_url!r}.")
        for name in ("client_certificate_s", "max_fast_transfers", "max_model_bytes"):
            if not getattr(self, name) > 0:
                raise UsageError(f"Expected {name} > 0, got {getattr(self, name)}.")
        if not self.keep_models >= 0:
            raise UsageError(f"Expected keep_models >= 0, got {self.keep_models}.")
        if not self.late_renewal_s >= 0:
            raise UsageError(f"Expected late_renewal_s >= 0, got {self.late_renewal_s}.")
        chunk_size.check(self.chunk_bytes)
        tracing.check_endpoint(self.tracing)
        if not self.names:
            raise UsageError("Expected at least one name for the server's certificate, got none.")


def split_address(address: str, name: str) -> tuple[str, int]:
    """Host and port of `host:port`.

    Raises:
        UsageError: it is not of that form.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 <= int(port) <= 65535:
        raise UsageError(f"Expected {name} as host:port, got {address!r}.")
    return host.strip("[]"), int(port)


def load(state_dir: Path) -> ServerConfig:
    """Read `server.toml`.

    Raises:
        UsageError: there is none, or it holds what it must not.
    """
    path = state_dir / FILE
    try:
        values = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise UsageError(
            f"Expected a server in {state_dir}, got no {FILE}: run `fedloom server init` first."
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: {error}") from None
    return build(values, str(path))


def build(values: dict[str, Any], where: str) -> ServerConfig:
    """A checked configuration from parsed TOML.

    Raises:
        UsageError: an unknown setting, or a wrong type.
    """
    known = {field.name: field for field in fields(ServerConfig)}
    if unknown := sorted(set(values) - set(known)):
        raise UsageError(
            f"{where}: expected settings of {', '.join(known)}, got {', '.join(unknown)}."
        )
    defaults = ServerConfig()
    checked: dict[str, Any] = {}
    for name, value in values.items():
        if name == "oidc":
            checked[name] = oidc.build(value if isinstance(value, dict) else {"oidc": value})
            continue
        if name == "tracing":
            checked[name] = _endpoint(value, where)
            continue
        if name == "flower":
            checked[name] = _strategies(value, where)
            continue
        if name == "chunk_bytes":  # a number or a word: checked as it is
            checked[name] = value
            continue
        default = getattr(defaults, name)
        wanted = float if isinstance(default, float) else type(default)
        if wanted is bool and not isinstance(value, bool):
            raise UsageError(f"{where}: expected {name} as true or false, got {value!r}.")
        try:
            checked[name] = tuple(map(str, value)) if wanted is tuple else wanted(value)
        except (TypeError, ValueError):
            raise UsageError(
                f"{where}: expected {name} as {wanted.__name__}, got {value!r}."
            ) from None
    return ServerConfig(**checked)


def _endpoint(value: object, where: str) -> str:
    if not isinstance(value, dict) or set(value) - {"endpoint"}:
        raise UsageError(f"{where}: expected a table [tracing] with an `endpoint`, got {value!r}.")
    return str(value.get("endpoint", ""))


def _strategies(value: Any, where: str) -> dict[str, str]:
    """The table of Flower's strategies."""
    if not isinstance(value, dict) or not all(
        isinstance(code, str) and name.replace("-", "").replace("_", "").isalnum()
        for name, code in value.items()
    ):
        raise UsageError(
            f'{where}: expected [flower] as a table such as krum = "strategies.py:krum", of names '
            f"of letters, digits, - and _, got {value!r}."
        )
    return value


def write(state_dir: Path, config: ServerConfig) -> None:
    """Write `server.toml` with a comment beside each setting."""
    comments = {
        "federation": "name of the federation, part of every identity",
        "fleet": "where enrolled clients connect (mTLS)",
        "enrolment": "where devices with a token enrol (server TLS)",
        "names": "host names and addresses in the server's certificate",
        "client_certificate_s": "life of a client's certificate, seconds",
        "late_renewal_s": "how long after its end its key may still renew it, seconds; 0 for never",
        "max_fast_transfers": "models or updates at full speed at once, each way",
        "max_model_bytes": "largest model a run may start from",
        "keep_models": "committed models kept of each run, beside promoted ones; 0 for all",
        "chunk_bytes": 'of a model in one message; "auto" finds the fastest by measurement',
        "console": 'web console and remote operators; "auto" is 127.0.0.1:7445 or the next free '
        'port, "" is none; off loopback it speaks TLS',
        "console_certificate": "chain in PEM; empty for one of the federation's own authority",
        "console_key": "its key in PEM; empty where it is in the same file",
        "console_url": "where operators reach it, if elsewhere: https://fl.example.org",
        "database": "SQLAlchemy URL; empty for ledger.sqlite beside this file",
        "metrics_open": "whether programs on this machine may read /metrics without a token",
    }
    lines = []
    for item in fields(ServerConfig):
        value = getattr(config, item.name)
        if item.name in _TABLES:
            continue
        if isinstance(value, tuple):
            text = "[" + ", ".join(f'"{v}"' for v in value) + "]"
        else:
            text = f'"{value}"' if isinstance(value, str) else f"{value}".lower()
        lines.append(f"# {comments[item.name]}\n{item.name} = {text}\n")
    (state_dir / FILE).write_text("\n".join(lines))
