"""Settings of a client: `client.toml`, and environment variables that override it.

Invariant: the template that enrolment writes, the table in docs/client.md and the environment
variables all follow from the declarations here.
"""

import os
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, Literal

from fedloom.client.budgets.settings import Budgets
from fedloom.client.conditions.settings import Conditions
from fedloom.client.training.checkpoints import Interruptions
from fedloom.protocol import settings
from fedloom.protocol.errors import UsageError
from fedloom.protocol.settings import setting, toml
from fedloom.protocol.tracing import Tracing
from fedloom.protocol.transport import chunk_size
from fedloom.protocol.transport.methods import CHUNK_BYTES, LEAST_PING_S
from fedloom.strategies.setting_checks import in_words

POLICY = "policy.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """Settings of a client; `doc` describes each field."""

    server: str = setting(doc="host:port of the fleet", example="fl.example.org:7443")
    enrolment: str = setting(
        "",
        doc="host:port for enrolment and for the renewal of expired certificates",
        example="fl.example.org:7444",
    )
    state_dir: Path = setting(
        doc="folder for the identity, received models and unsent updates; keep it private; "
        "relative to this file, or to the current folder if an environment variable sets it",
        example="client-state",
    )
    policy: Path | None = setting(
        None,
        doc="file that restricts the runs this device takes part in and the data that may leave "
        "it; by default policy.toml beside this file, if it exists",
        example="policy.toml",
    )
    plaintext: str = setting(
        "",
        doc="client name for connections without TLS; on loopback only, for trials",
        example="ward-3",
    )
    reconnect_s: float = setting(
        60.0, doc="longest time between attempts to reconnect, seconds", least=1e-3
    )
    ping_s: float = setting(
        140.0,
        doc="silence on the connection after which the device tests it, seconds; the server is "
        "lost 20 s later. Best a little less than the server's ping_s: one of both is enough",
        least=LEAST_PING_S,
        most=3600,
    )
    attendance: Literal["stream", "check-in"] = setting(
        "stream",
        doc='how the server reaches this device: it holds a connection, or with "check-in" it '
        "comes when the server said, waits a while for a task, and leaves (docs/check-in.md)",
    )
    chunk_bytes: chunk_size.Setting = setting(
        CHUNK_BYTES, doc='bytes of a transfer in one message; "auto" measures which size is fastest'
    )
    isolation: Literal["process", "none"] = setting(
        "process",
        doc="where `fedloom client run` trains: in a process of its own, which a crash or a broken "
        'limit ends, or with "none" in the agent',
    )
    keep_warm_s: float = setting(
        60.0,
        doc="how long the training process, with its code and data, is kept after a task for the "
        "next one, seconds",
        least=0,
    )
    conditions: Conditions = setting(default_factory=Conditions, doc="when to train")
    budgets: Budgets = setting(default_factory=Budgets, doc="limits on resources")
    interruptions: Interruptions = setting(
        default_factory=Interruptions, doc="interrupted training"
    )
    tracing: Tracing = setting(default_factory=Tracing, doc="where traces are sent")
    labels: dict[str, str] = setting(
        default_factory=dict, doc="labels that the operator sees", example={"ward": "3"}
    )
    flower: dict[str, str] = setting(
        default_factory=dict,
        doc="node_config of a Flower app, see docs/flower.md",
        example={"partition-id": "0", "num-partitions": "10"},
    )

    def __post_init__(self) -> None:
        host = _host("server", self.server)
        if self.enrolment:
            _host("enrolment", self.enrolment)
        if self.plaintext and host not in ("localhost", "127.0.0.1", "[::1]"):
            raise UsageError(
                f"Expected a server on loopback with plaintext, got {self.server!r}. Remove "
                'plaintext, or use server = "localhost:PORT".'
            )
        if not self.reconnect_s > 0:
            raise UsageError(f"Expected reconnect_s > 0, got {self.reconnect_s}.")
        chunk_size.check(self.chunk_bytes)

    @property
    def checks_in(self) -> bool:
        """Whether the device comes when told, rather than hold a connection."""
        return self.attendance == "check-in"

    def require_stream(self, what: str) -> None:
        """Check that the device holds a connection.

        Raises:
            UsageError: it checks in.
        """
        if self.checks_in:
            raise UsageError(
                f'Expected attendance = "stream" for {what}, got "check-in": the server reaches it '
                "at any time. Remove the setting from its client.toml."
            )


def _host(name: str, address: str) -> str:
    host, _, port = address.rpartition(":")
    is_port = port.isascii() and port.isdigit() and 0 < int(port) <= 65535
    if not host or not is_port or "/" in host or any(map(str.isspace, host)):
        raise UsageError(f"Expected {name} as host:port, got {address!r}.")
    return host


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings with their sources.

    Attributes:
        config: the settings.
        sources: key → path of the file or name of the environment variable; no entry: the default.
    """

    config: ClientConfig
    sources: Mapping[str, str]


def load(path: Path, environ: Mapping[str, str] | None = None) -> ClientConfig:
    """Read client.toml and the environment; without a file, the environment may set everything.

    Args:
        path: of the file.
        environ: variables that override the file; this process's by default.

    Raises:
        UsageError: a setting is unknown, missing or not valid, or the file cannot be read.
    """
    return read(path, environ).config


def read(path: Path, environ: Mapping[str, str] | None = None) -> Loaded:
    """As `load`, with the source of each setting."""
    with settings.within("In the environment"):
        overrides = settings.from_environment(
            ClientConfig, os.environ if environ is None else environ
        )
    document = toml.read_optional(path, "settings")
    with settings.within(path) if document is not None else nullcontext():
        written = settings.from_table(ClientConfig, document or {})
        if "policy" not in written and (path.parent / POLICY).exists():
            written["policy"] = POLICY
        for name in ("state_dir", "policy"):
            if name in written:
                written[name] = path.parent / written[name]
        _check_required(written | overrides, path, exists=document is not None)
    with settings.within(f"{path} and the environment" if overrides else path):
        config = settings.build(ClientConfig, written | overrides)
    variables = {s.key: s.variable for s in settings.declared(ClientConfig)}
    sources = dict.fromkeys(written, str(path)) | {key: variables[key] for key in overrides}
    return Loaded(config, sources)


def _check_required(values: Mapping[str, Any], path: Path, *, exists: bool) -> None:
    required = [s for s in settings.declared(ClientConfig) if s.default is MISSING]
    missing = [s for s in required if s.key not in values]
    if not missing:
        return
    if not exists:
        raise UsageError(
            f"No settings file {path}: `fedloom client enroll` writes one. "
            f"Or set {' and '.join(s.variable for s in missing)}."
        )
    names = " and ".join(f"{s.key} ({in_words(s.kind)})" for s in missing)
    raise UsageError(f"Missing setting {names}. Add it, or set the variable {missing[0].variable}.")


def template(given: Mapping[str, Any]) -> str:
    """Return a client.toml with every setting, its description, and its default as a comment.

    Args:
        given: key → value that is written as a setting.
    """
    head = [
        "# Settings of a client, described in docs/client.md. An environment variable overrides",
        "# each of them, such as FEDLOOM_SERVER.",
    ]
    return settings.template(ClientConfig, head, given)


def table() -> str:
    """Return the settings as a Markdown table, for docs/client.md."""
    return settings.markdown(ClientConfig)
