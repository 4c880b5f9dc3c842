"""Settings of a client: `client.toml` and the environment, with errors that say what to mend.

Invariant: what is declared here is all there is: the template that enrolment writes, the table in
docs/client.md and the environment variables come from it.
"""

import os
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

from fedloom.client import settings
from fedloom.client.budgets.settings import Budgets
from fedloom.client.conditions.settings import Conditions
from fedloom.client.settings import setting
from fedloom.client.tracing import Tracing
from fedloom.client.training.checkpoints import Interruptions
from fedloom.protocol.errors import UsageError
from fedloom.protocol.transport import chunk_size
from fedloom.protocol.transport.methods import CHUNK_BYTES

POLICY = "policy.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """Where a client belongs, and how it behaves there; each setting says what it is."""

    server: str = setting(doc="host:port of the fleet", example="fl.example.org:7443")
    enrolment: str = setting(
        "",
        doc="host:port where devices enrol, and renew certificates that have ended",
        example="fl.example.org:7444",
    )
    state_dir: Path = setting(
        doc="folder of the identity, received models and unsent updates; keep it private; from "
        "the folder of this file, or the current one where the environment says it",
        example="client-state",
    )
    policy: Path | None = setting(
        None,
        doc="file of what this device takes part in and what may leave it; policy.toml beside this "
        "file where there is one",
        example="policy.toml",
    )
    plaintext: str = setting(
        "", doc="name to go by without TLS, on loopback only, for trials", example="ward-3"
    )
    reconnect_s: float = setting(
        60.0, doc="longest wait between attempts to reconnect, seconds", least=1e-3
    )
    chunk_bytes: chunk_size.Setting = setting(
        CHUNK_BYTES, doc='bytes in one message; "auto" finds the fastest by measurement'
    )
    conditions: Conditions = setting(default_factory=Conditions, doc="when to train")
    budgets: Budgets = setting(default_factory=Budgets, doc="what it may use at most")
    interruptions: Interruptions = setting(
        default_factory=Interruptions, doc="when a training is cut short"
    )
    tracing: Tracing = setting(default_factory=Tracing, doc="who hears how long things take")
    labels: dict[str, str] = setting(
        default_factory=dict, doc="shown to the operator", example={"ward": "3"}
    )
    flower: dict[str, str] = setting(
        default_factory=dict,
        doc="the node_config of an app for Flower, see docs/flower.md",
        example={"partition-id": "0", "num-partitions": "10"},
    )

    def __post_init__(self) -> None:
        """Check what concerns more than one value."""
        host = _host("server", self.server)
        if self.enrolment:
            _host("enrolment", self.enrolment)
        if self.plaintext and host not in ("localhost", "127.0.0.1", "[::1]"):
            raise UsageError(f"Expected a loopback server without TLS, got {self.server!r}.")
        if not self.reconnect_s > 0:
            raise UsageError(f"Expected reconnect_s > 0, got {self.reconnect_s}.")
        chunk_size.check(self.chunk_bytes)


def _host(name: str, address: str) -> str:
    """The host of an address, which is host:port."""
    host, _, port = address.rpartition(":")
    is_port = port.isascii() and port.isdigit() and 0 < int(port) <= 65535
    if not host or not is_port or "/" in host or any(map(str.isspace, host)):
        raise UsageError(f"Expected {name} as host:port, got {address!r}.")
    return host


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings, and where they are from.

    Attributes:
        config: the settings.
        sources: key → `file`, or the variable of the environment; what is missing is the default.
    """

    config: ClientConfig
    sources: Mapping[str, str]


def load(path: Path, environ: Mapping[str, str] | None = None) -> ClientConfig:
    """Read a client.toml and the environment; without a file the environment may say it all.

    Args:
        path: of the file.
        environ: variables that go over the file; this process's by default.

    Raises:
        UsageError: something required is missing, or there is what must not be.
    """
    return read(path, environ).config


def read(path: Path, environ: Mapping[str, str] | None = None) -> Loaded:
    """As `load`, with the source of each setting."""
    try:
        told = settings.from_environment(ClientConfig, os.environ if environ is None else environ)
    except UsageError as error:
        raise UsageError(f"In the environment: {error}") from None
    try:
        written = settings.from_toml(ClientConfig, _document(path))
        if "policy" not in written and (path.parent / POLICY).exists():
            written["policy"] = POLICY
        for name in ("state_dir", "policy"):
            if name in written:
                written[name] = path.parent / written[name]
        _check_required(written | told, path)
    except UsageError as error:
        raise UsageError(f"{path}: {error}" if path.exists() else str(error)) from None
    config = settings.build(ClientConfig, written | told)
    variables = {s.key: s.variable for s in settings.declared(ClientConfig)}
    sources = dict.fromkeys(written, str(path)) | {key: variables[key] for key in told}
    return Loaded(config, sources)


def _document(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except tomllib.TOMLDecodeError as error:
        raise UsageError(
            f"expected settings as TOML, got: {error}. Mend that line, or the end of the file."
        ) from None
    except UnicodeDecodeError as error:
        raise UsageError(
            f"expected settings as text in UTF-8, got the byte {error.object[error.start]:#04x} at "
            f"{error.start}. Restore it, or write it anew from docs/client.md."
        ) from None
    except OSError as error:
        raise UsageError(
            f"expected a file that this user may read, got: {error.strerror}. Run this as its "
            "owner, or mend its owner and mode."
        ) from None


def _check_required(values: Mapping[str, Any], path: Path) -> None:
    required = [s for s in settings.declared(ClientConfig) if s.default is MISSING]
    missing = [s for s in required if s.key not in values]
    if not missing:
        return
    if not path.exists():
        raise UsageError(
            f"Expected a client's settings in {path}, got no such file: `fedloom client enroll` "
            f"makes one. Or set {' and '.join(s.variable for s in missing)}."
        )
    names = " and ".join(f"{s.key} as {settings.type_name(s.kind)}" for s in missing)
    raise UsageError(f"expected {names}, got nothing; it may also be {missing[0].variable}.")


def template(given: Mapping[str, Any]) -> str:
    """A client.toml with every setting, its sentence, and its default as a comment.

    Args:
        given: key → value that is written as a setting.
    """
    lines = ["# Settings of a client; docs/client.md says more. Each may also be a variable of the"]
    lines += ["# environment, which goes over this file, such as FEDLOOM_SERVER."]
    table = ""
    for item in settings.declared(ClientConfig):
        if item.kind == dict[str, str]:
            continue
        if item.table != table:
            table = item.table
            lines += ["", f"[{table}]"]
        lines += ["", f"# {item.doc}", _line(item, given)]
    for item in settings.declared(ClientConfig):
        if item.kind == dict[str, str]:
            pairs = given.get(item.key) or {}
            example = [f"# {k} = {settings.text_of(v)}" for k, v in (item.example or {}).items()]
            lines += ["", f"# {item.doc}", f"[{item.key}]"]
            lines += [f"{k} = {settings.text_of(v)}" for k, v in pairs.items()] or example
    return "\n".join(lines) + "\n"


def _line(item: settings.Setting, given: Mapping[str, Any]) -> str:
    if item.key in given:
        return f"{item.name} = {settings.text_of(given[item.key])}"
    shown = item.example if item.default in (None, "", ()) else item.default
    return f"# {item.name} = {settings.text_of(shown)}"


def table() -> str:
    """The settings as a table of Markdown, for docs/client.md."""
    rows = ["| setting | variable | type | default | |", "|---|---|---|---|---|"]
    for item in settings.declared(ClientConfig):
        if item.default is MISSING:
            default = "required"
        else:
            empty = item.default in (None, "", (), {})
            default = "–" if empty else f"`{settings.text_of(item.default)}`"
        kind = settings.type_name(item.kind).replace("|", "\\|")
        cells = (f"`{item.key}`", f"`{item.variable}`", kind, default, _bounded(item))
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def _bounded(item: settings.Setting) -> str:
    if item.least is not None and item.most is not None:
        return f"{item.doc}; {item.least:g} to {item.most:g}"
    return item.doc
