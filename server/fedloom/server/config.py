"""Settings of a server: `server.toml` in its state directory.

They hold no secrets: keys are in `pki/`, with mode 0600.
"""

import ipaddress
import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fedloom.protocol import settings
from fedloom.protocol.errors import UsageError
from fedloom.protocol.settings import setting, toml
from fedloom.protocol.tracing import Tracing
from fedloom.protocol.transport import chunk_size
from fedloom.protocol.transport.methods import CHUNK_BYTES, LEAST_PING_S
from fedloom.protocol.trust.private_files import private_opener, write_private
from fedloom.server.check_in_pace import CheckInRules
from fedloom.server.client_failures import ClientRules
from fedloom.server.oidc_config import OidcConfig
from fedloom.server.public_names import PublicNames
from fedloom.server.store_url import StoreUrl

FILE = "server.toml"

PRIVATE = (
    FILE,
    "models",
    "spool",
    "gate-spool",
    "upstream",
    "audit.head",
    "ledger.sqlite",
    "ledger.sqlite-wal",
    "ledger.sqlite-shm",
)
"""Names in the state directory whose modes are narrowed if they are wide; wide keys are refused."""

_NOTIFIES = "postgresql+psycopg://"
_SHARED = ("postgresql://", "postgresql+psycopg://", "postgresql+psycopg2://")
"""Databases that servers can share, over drivers that know the settings of `LeaseRows`."""

_OPTIONAL = ("clients", "check_in", "oidc", "tracing", "flower", "flower_apps")
"""Tables that are not in a new file, unless they are given: docs/operating.md, docs/check-in.md,
docs/console-security.md, docs/metrics.md, docs/flower.md."""

Networks = tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]

AUTO = "auto"
"""Value of `console`: the first free port on loopback."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Settings of a server."""

    federation: str = setting("fedloom", doc="name of the federation, part of every identity")
    fleet: str = setting("0.0.0.0:7443", doc="host:port for enrolled clients (mTLS)")
    enrolment: str = setting("0.0.0.0:7444", doc="host:port for devices with a token (server TLS)")
    names: tuple[str, ...] = setting(
        ("localhost", "127.0.0.1"), doc="host names and addresses in the server's certificate"
    )
    public_name: str = setting(
        "",
        doc="host name of this server behind a proxy that passes TLS on by its name, on port 443 "
        "or as NAME:PORT: NAME is the fleet's, enroll.NAME is for devices with a token, "
        "console.NAME for operators (docs/one-door.md); empty: they use the ports above",
    )
    proxies: tuple[str, ...] = setting(
        (),
        doc="addresses or networks of proxies whose connections to the console begin with a PROXY "
        "header, version 2, that names the caller (haproxy: send-proxy-v2)",
    )
    client_certificate_s: float = setting(
        7 * 24 * 3600.0, doc="validity of a client's certificate, seconds"
    )
    late_renewal_s: float = setting(
        7 * 24 * 3600.0,
        doc="time after expiry in which a client may still renew its certificate with its key, on "
        "the enrolment port, seconds; 0: never",
    )
    max_fast_transfers: int = setting(
        8,
        doc="most models or updates transferred at full speed at once, in each direction; others "
        "wait, in turn by client. A busy server transfers fewer, down to two. Slow transfers have "
        "64 times as many slots",
    )
    ping_s: float = setting(
        150.0,
        doc="silence of a device after which the server tests its connection, seconds; it is lost "
        "20 s later. Large idle fleets save processor time by a longer one, also in client.toml",
        least=LEAST_PING_S,
        most=3600,
    )
    extra_download_bytes_per_s: int = setting(
        16 << 20,
        doc="rate of downloads that no task needs, of all clients together, while a round is open; "
        "bytes per second",
    )
    max_running: int = setting(
        0,
        doc="runs that are running at once in each study; further ones wait in a queue; 0: no "
        "limit",
    )
    name_devices: bool = setting(
        False,
        doc="whether a parent server learns the names of the devices in each sum of this site, or "
        "only their number",
    )
    digest_devices: bool = setting(
        False,
        doc="whether a parent server learns a salted digest of the names in each sum, whose record "
        "stays in upstream/members",
    )
    max_model_bytes: int = setting(1 << 40, doc="largest model that a run may start from, bytes")
    keep_models: int = setting(
        100,
        doc="latest committed models kept of each run, beside its initial, current, best and "
        "promoted ones; 0: all",
    )
    keep_audit_s: float = setting(
        6 * 365 * 24 * 3600.0,
        doc="time for which entries of the audit trail are kept, seconds; 0: for ever",
    )
    chunk_bytes: chunk_size.Setting = setting(
        CHUNK_BYTES, doc='bytes of a model in one message; "auto" measures which size is fastest'
    )
    console: str = setting(
        AUTO,
        doc='host:port of the web console and of remote operators; "auto": 127.0.0.1:7445 or the '
        'next free port; "": none; on other addresses than loopback it uses TLS',
    )
    console_certificate: str = setting(
        "",
        doc="certificate chain of the console in PEM, relative to the state directory; empty: one "
        "of the federation's authority",
    )
    console_key: str = setting("", doc="key of that certificate in PEM; empty: in the same file")
    console_url: str = setting(
        "",
        doc="URL of the console for operators if it differs from the address, such as behind a "
        "reverse proxy: https://fl.example.org",
    )
    database: str = setting("", doc="SQLAlchemy URL; empty: ledger.sqlite beside this file")
    store: str = setting(
        "",
        doc="URL of the object store for models and updates, such as s3://bucket/prefix; empty: "
        "files beside this file (docs/object-store.md)",
    )
    store_cache_bytes: int = setting(
        20 << 30, doc="models of the object store that are kept on this disk, too, bytes"
    )
    replicated: bool = setting(
        False,
        doc="whether several servers share the database and the store: one drives, the others are "
        "on standby (docs/replicas.md)",
    )
    gates: bool = setting(
        False, doc="whether replicas that do not drive serve devices, too (docs/replicas.md)"
    )
    health: str = setting(
        "",
        doc="host:port that answers GET /ready with 200 while this server serves devices, else "
        "503, GET /live with 200, and GET /metrics with who drives; plain HTTP, without other "
        "data; empty: none",
    )
    metrics_open: bool = setting(
        False, doc="whether programs on this machine may read /metrics without a token"
    )
    clients: ClientRules = setting(
        default_factory=ClientRules, doc="clients that fail again and again"
    )
    check_in: CheckInRules = setting(
        default_factory=CheckInRules, doc="devices that come when told, and leave"
    )
    tracing: Tracing = setting(default_factory=Tracing, doc="where traces are sent")
    oidc: OidcConfig | None = setting(
        None, doc="single sign-on for operators; left out: passwords only"
    )
    flower: dict[str, str] = setting(
        default_factory=dict,
        doc="Flower strategies that runs may use as flower:NAME: FILE.py:NAME, relative to the "
        "state directory, or MODULE:NAME; the server runs this code",
    )
    flower_apps: dict[str, str] = setting(
        default_factory=dict,
        doc="Flower apps whose ServerApp runs may name as flower.server_app: their folders, "
        "relative to the state directory; the server runs this code",
    )

    def __post_init__(self) -> None:
        for name in ("fleet", "enrolment"):
            split_address(getattr(self, name), name)
        if self.console not in ("", AUTO):
            split_address(self.console, "console")
        self._check_public()
        for name in (
            "client_certificate_s", "max_fast_transfers", "extra_download_bytes_per_s",
            "max_model_bytes", "store_cache_bytes",
        ):  # fmt: skip
            if not getattr(self, name) > 0:
                raise UsageError(f"Expected {name} > 0, got {getattr(self, name)}.")
        for name in ("max_running", "keep_models", "late_renewal_s", "keep_audit_s"):
            if not getattr(self, name) >= 0:
                raise UsageError(f"Expected {name} >= 0, got {getattr(self, name)}.")
        if self.name_devices and self.digest_devices:
            raise UsageError("Expected name_devices or digest_devices, got both: leave out one.")
        chunk_size.check(self.chunk_bytes)
        if not self.names:
            raise UsageError("Expected at least one name for the server's certificate, got none.")
        store = StoreUrl.parse(self.store) if self.store else None
        if self.health:
            split_address(self.health, "health")
        _check_names("flower", self.flower, "strategies.py:krum")
        _check_names("flower_apps", self.flower_apps, "apps/krum")
        self._check_replicated(store)

    @property
    def public(self) -> PublicNames | None:
        """The names behind one port; None without a `public_name`."""
        return PublicNames.parse(self.public_name) if self.public_name else None

    @property
    def certificate_names(self) -> tuple[str, ...]:
        """Host names and addresses in the server's certificate, the public ones last."""
        hosts = () if self.public is None else self.public.hosts
        return tuple(dict.fromkeys((*self.names, *hosts)))

    def proxy_networks(self) -> Networks:
        """The networks of `proxies`.

        Raises:
            UsageError: one is neither an address nor a network.
        """
        try:
            return tuple(ipaddress.ip_network(each) for each in self.proxies)
        except ValueError as error:
            raise UsageError(
                "Expected proxies as addresses or networks, such as 192.0.2.10 or 10.0.0.0/28, "
                f"got {', '.join(self.proxies)}: {error}."
            ) from None

    def _check_public(self) -> None:
        given = urlsplit(self.console_url)
        if self.console_url and (given.scheme not in ("http", "https") or not given.hostname):
            raise UsageError(f"Expected console_url as https://HOST, got {self.console_url!r}.")
        if self.public is not None and self.console_url:
            raise UsageError(
                "Expected console_url or public_name, which gives the console its URL, got both: "
                "leave console_url empty."
            )
        if self.public is not None and self.console and not self.proxies:
            raise UsageError(
                "Expected proxies with public_name, got none: name the addresses of the proxy, "
                'such as proxies = ["192.0.2.10"], or the console would see it as every caller.'
            )
        self.proxy_networks()

    def _check_replicated(self, store: StoreUrl | None) -> None:
        if self.gates and not self.replicated:
            raise UsageError("Expected gates = true with replicated = true, got it without.")
        if self.gates and not self.database.startswith(_NOTIFIES):
            raise UsageError(
                f"Expected gates = true with database = {_NOTIFIES}..., whose driver brings "
                "notifications, got another one."
            )
        shared = store is not None and store.bucket and self.database.startswith(_SHARED)
        if self.replicated and not shared:
            raise UsageError(
                "Expected replicated = true with a database and a store that every replica "
                'reaches, such as database = "postgresql+psycopg://..." and store = "s3://...", '
                "got others: see docs/replicas.md."
            )


def _check_names(table: str, names: Iterable[str], example: str) -> None:
    if not all(name.replace("-", "").replace("_", "").isalnum() for name in names):
        raise UsageError(
            f"Expected names of letters, digits, - and _ in [{table}], such as "
            f'krum = "{example}", got {", ".join(names)}.'
        )


def split_address(address: str, name: str) -> tuple[str, int]:
    """Host and port of `host:port`.

    Raises:
        UsageError: the address has another form.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 <= int(port) <= 65535:
        raise UsageError(f"Expected {name} as host:port, such as 0.0.0.0:7443, got {address!r}.")
    return host.strip("[]"), int(port)


def load(state_dir: Path) -> ServerConfig:
    """Read `server.toml`.

    Raises:
        UsageError: it is missing or cannot be read, or a setting is unknown or not valid.
    """
    path = state_dir / FILE
    document = toml.read_optional(path, "settings")
    if document is None:
        raise UsageError(f"There is no {FILE} in {state_dir}: run `fedloom server init` first.")
    return _parsed(path, document)


def write(state_dir: Path, config: ServerConfig) -> None:
    """Write `server.toml` with a comment above each setting."""
    default = ServerConfig()
    left_out = [name for name in _OPTIONAL if getattr(config, name) == getattr(default, name)]
    given = {
        item.key: settings.value_of(config, item)
        for item in settings.declared(ServerConfig)
        if item.table not in left_out and item.key not in left_out
    }
    head = ["# Settings of the server; see docs/deployment.md."]
    text = settings.template(ServerConfig, head, given, without=left_out)
    with open(state_dir / FILE, "w", encoding="utf-8", opener=private_opener) as file:
        file.write(text)


def rewrite(state_dir: Path, config: ServerConfig, names: Collection[str]) -> None:
    """Change some settings outside of tables in `server.toml`, and nothing else, atomically.

    Args:
        state_dir: of the server.
        config: the settings afterwards; they differ from the file's in `names` alone.
        names: of settings whose values are texts.
    """
    path = state_dir / FILE
    text = path.read_text("utf-8")
    head = re.split(r"(?m)^[ \t]*\[", text, maxsplit=1)[0]
    changed = head
    for name in names:
        line = f"{name} = {json.dumps(getattr(config, name))}"
        at = re.search(rf"(?m)^[ \t]*(# )?{name}[ \t]*=.*$", changed)
        start, stop = at.span() if at else (0, 0)
        changed = changed[:start] + line + ("" if at else "\n") + changed[stop:]
    changed += text[len(head) :]
    if _parsed(path, toml.parse(changed, "settings")) != config:
        raise UsageError(
            f"Expected settings outside of tables in {path}, one in each line, got others: set "
            f"{', '.join(names)} there by hand."
        )
    write_private(path, changed.encode())


def _parsed(path: Path, document: Mapping[str, Any]) -> ServerConfig:
    with settings.within(path):
        return settings.build(ServerConfig, settings.from_table(ServerConfig, document))
