"""`fedloom api-token`: API tokens for programs and remote operators."""

from pathlib import Path
from typing import Any

import click

from fedloom.cli.common import output
from fedloom.cli.common.lazy import LazyGroup
from fedloom.cli.common.options import (
    Duration,
    out_option,
    scope_option,
    server_options,
    study_option,
)
from fedloom.cli.connection.api_client import Control
from fedloom.cli.operator.confirm import confirm, yes_option
from fedloom.protocol.trust.private_files import write_private


@click.group("api-token", cls=LazyGroup)
def api_token() -> None:
    """Manage API tokens for programs and for operators on other machines.

    Devices need `fedloom token` instead.
    """


@api_token.command()
@click.argument("name")
@scope_option(required=True, least="metrics")
@click.option("--ttl", "ttl_s", type=Duration(), default="90d", show_default=True, help="Lifetime.")
@click.option("--forever", is_flag=True, help="No expiry; valid until revoked.")
@study_option
@out_option("Write it to a file, mode 0600, instead of printing it.")
@server_options
def create(
    name: str,
    *,
    scope: str,
    ttl_s: float,
    forever: bool,
    studies: tuple[str, ...],
    out: Path | None,
    directory: Path,
) -> None:
    """Create an API token for NAME. Its text is shown only once.

    \b
    Examples:
      fedloom api-token create prometheus --scope metrics --forever
      fedloom api-token create ci --scope operator --ttl 7d --out ci.token
    """
    body: dict[str, Any] = {"name": name, "scope": scope, "ttl_s": None if forever else ttl_s}
    body["studies"] = list(studies) or None
    control = Control(directory)
    made = control.post("api-tokens", body=body)
    url = control.get("server")["console"] or "https://SERVER:7445"
    if out is not None:
        write_private(out, f"{made.pop('token')}\n".encode())
        made["file"] = str(out)
    output.emit(made, lambda: _show_made(made, url))


def _show_made(made: dict[str, Any], url: str) -> None:
    until = made["expires_at"]
    click.echo(made.get("file") or made["token"])
    click.echo(
        f"\nIt gives {made['name']} the scope {made['scope']}"
        f"{' until ' + output.moment(until) if until else ''}. To use it:\n"
        f"  fedloom run list --url {url} "
        f"--api-token {'@' + made['file'] if 'file' in made else 'TOKEN'}\n"
        f"To revoke it:\n  fedloom api-token revoke {made['id']}"
    )


@api_token.command("list")
@server_options
def list_api_tokens(directory: Path) -> None:
    """List API tokens, newest first. Their secrets are not stored.

    \b
    Example:
      fedloom api-token list
    """
    found = Control(directory).get("api-tokens")
    rows = (
        (
            t["id"],
            output.escape(t["name"]),
            t["scope"],
            output.state(t["status"]),
            output.ahead(t["expires_at"]) if t["expires_at"] else "never",
            output.moment(t["used_at"]),
            output.escape(t["made_by"]),
        )
        for t in found["api_tokens"]
    )
    output.emit_table(
        found,
        ("ID", "NAME", "SCOPE", "STATUS", "EXPIRES", "LAST USED", "CREATED BY"),
        rows,
        "No API tokens yet. Create one with `fedloom api-token create NAME --scope viewer`.",
    )


@api_token.command()
@click.argument("token_id", metavar="ID")
@yes_option
@server_options
def revoke(token_id: str, directory: Path) -> None:
    """Revoke an API token.

    \b
    Example:
      fedloom api-token revoke 0f3a9c21
    """
    confirm(f"The API token {token_id} is revoked permanently.")
    revoked = Control(directory).post("api-tokens", token_id, "revoke")
    output.emit_text(revoked, f"{token_id} of {revoked['name']} is revoked.")
