"""`fedloom token`: one-time tokens that enrol devices."""

from pathlib import Path
from typing import Any

import click

from fedloom.cli.common import output
from fedloom.cli.common.lazy import LazyGroup
from fedloom.cli.common.options import Duration, server_options
from fedloom.cli.connection.api_client import Control
from fedloom.cli.operator.confirm import confirm, yes_option
from fedloom.protocol.errors import UsageError
from fedloom.protocol.trust.private_files import write_private


@click.group(cls=LazyGroup)
def token() -> None:
    """Invite devices by one-time tokens."""


@token.command()
@click.option(
    "--client",
    "clients",
    metavar="NAME",
    multiple=True,
    help="Name of the client; repeatable, one token each. Default: a random readable name.",
)
@click.option("--count", type=click.IntRange(1, 10_000), help="Number of tokens with random names.")
@click.option("--ttl", "ttl_s", type=Duration(), default="24h", show_default=True, help="Lifetime.")
@click.option("--study", default="", metavar="NAME", help="Enrol into this study.")
@click.option(
    "--devices",
    type=click.IntRange(1, 1 << 20),
    help="Enrol a server that sums for so many devices of its own; see docs/site-aggregators.md.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write each to DIR/NAME.token, mode 0600, instead of printing it.",
)
@server_options
def create(
    *,
    clients: tuple[str, ...],
    count: int | None,
    ttl_s: float,
    study: str,
    devices: int | None,
    out: Path | None,
    directory: Path,
) -> None:
    """Create tokens. Each enrols one device; its text is shown only once.

    \b
    Examples:
      fedloom token create --client ward-3
      fedloom token create --client ward-3 --study cardio
      fedloom token create --client north --devices 50
      fedloom token create --count 8 --ttl 7d --out tokens
    """
    if clients and count is not None:
        raise UsageError("Expected --client or --count, got both.")
    control = Control(directory)
    wanted: list[str | None] = list(clients) or [None] * (count or 1)
    made = []
    for client in wanted:
        body = {"client": client, "ttl_s": ttl_s, "study": study, "devices": devices or 0}
        issued = control.post("tokens", body=body)
        if out is not None:
            issued["file"] = _write(out, issued)
        made.append(issued)
    server = control.get("server")
    output.emit({"tokens": made}, lambda: _show_made(made, _reachable(server)))


def _write(out: Path, issued: dict[str, Any]) -> str:
    path = out / f"{issued['client']}.token"
    write_private(path, f"{issued.pop('token')}\n".encode())
    return str(path)


def _show_made(made: list[dict[str, Any]], enrolment: str) -> None:
    for issued in made:
        click.echo(f"{issued['client']}: {issued.get('file') or issued['token']}")
    first = made[0]
    given = f"@{first['file']}" if "file" in first else "TOKEN"
    click.echo(
        f"\nEach enrols one device, until {output.moment(first['expires_at'])}. On the device:\n"
        f"  fedloom client enroll --server {enrolment} --token {given}"
    )


def _reachable(server: dict[str, Any]) -> str:
    """An address for devices; a wildcard listener is replaced by a name in the certificate."""
    host, _, port = server["enrolment"].rpartition(":")
    if host not in ("0.0.0.0", "[::]", "::"):  # noqa: S104 - compared, not bound
        return str(server["enrolment"])
    local = ("localhost", "127.0.0.1", "::1")
    name = next((n for n in server["names"] if n not in local), server["names"][0])
    return f"{name}:{port}"


@token.command("list")
@server_options
def list_tokens(directory: Path) -> None:
    """List tokens, newest first. Their secrets are not stored.

    \b
    Example:
      fedloom token list
    """
    found = Control(directory).get_all("tokens", key="tokens", page="before")
    rows = (
        (t["id"], t["client"], output.state(t["status"]), output.ahead(t["expires_at"]))
        for t in found["tokens"]
    )
    columns = ("ID", "CLIENT", "STATUS", "EXPIRES")
    output.emit_table(
        found, columns, rows, "No tokens yet. Create one with `fedloom token create`."
    )


@token.command()
@click.argument("token_id", metavar="ID")
@yes_option
@server_options
def cancel(token_id: str, directory: Path) -> None:
    """Cancel an unused token.

    \b
    Example:
      fedloom token cancel 3f9a61c2
    """
    confirm(f"The token {token_id} is cancelled. Devices that are already enrolled are unaffected.")
    cancelled = Control(directory).post("tokens", token_id, "cancel")
    output.emit_text(cancelled, f"The token {token_id} for {cancelled['client']} is cancelled.")
