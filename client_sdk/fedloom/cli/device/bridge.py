"""`fedloom bridge`: Flower's SuperNodes as clients of a server."""

import asyncio
from pathlib import Path

import click

from fedloom.cli.common import output
from fedloom.cli.common.lazy import LazyGroup
from fedloom.cli.common.options import json_option, log_options, warn_if_visible
from fedloom.cli.device.client import token_text


@click.group(cls=LazyGroup)
def bridge() -> None:
    """Let Flower's SuperNodes take part in runs, as clients of the server.

    docs/flower.md has the steps, and what SuperNodes lose.
    """


_dir_option = click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("fedloom-bridge"),
    show_default=True,
    metavar="DIR",
    help="The bridge's folder, with bridge.toml.",
)


@bridge.command()
@click.option("--server", required=True, metavar="HOST:PORT", help="The server's enrolment port.")
@click.option(
    "--token",
    required=True,
    envvar="FEDLOOM_TOKEN",
    show_envvar=True,
    callback=warn_if_visible,
    metavar="TOKEN|@FILE",
    help="Of `fedloom token create`, which names the client; @FILE reads it from a file.",
)
@click.option(
    "--key",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The SuperNode's public key, as of ssh-keygen.",
)
@_dir_option
@json_option
def enroll(server: str, token: str, key: Path, directory: Path) -> None:
    """Enrol a SuperNode's key as a client. A bridge that runs knows it at once.

    \b
    Example:
      fedloom bridge enroll --server fl.example.org:7444 --token @ward-3.token --key ward-3.pub
    """
    _require_flower()
    from fedloom.client.supernodes.enrolment import enrol_key  # noqa: PLC0415 - it imports flwr
    from fedloom.protocol.supernodes import LOSSES  # noqa: PLC0415

    made = asyncio.run(enrol_key(directory, server, token_text(token), key))
    output.emit_text(
        {"client": made.client, "key": made.key, "folder": str(made.folder)},
        f"The SuperNode with the key {made.key} is the client {made.client}.\n"
        f"Of a SuperNode, {LOSSES}.",
    )


@bridge.command("list")
@_dir_option
@json_option
def list_nodes(directory: Path) -> None:
    """List the SuperNodes that are enrolled; `fedloom client list` shows which are online.

    \b
    Example:
      fedloom bridge list
    """
    _require_flower()
    from fedloom.client.supernodes.enrolment import enrolled  # noqa: PLC0415 - it imports flwr

    found = enrolled(directory)
    output.emit_text(
        {"supernodes": [{"client": each.client, "key": each.key} for each in found]},
        "\n".join(f"{each.client}  key {each.key}" for each in found) or "None is enrolled.",
    )


@bridge.command()
@_dir_option
@click.option(
    "--ready",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the port to this file once the bridge listens.",
)
@log_options
def run(directory: Path, ready: Path | None, log_format: str, log_level: str) -> None:
    """Run the bridge until SIGTERM or Ctrl-C. After a kill it continues where it was.

    \b
    Example:
      fedloom bridge run --dir /srv/fedloom-bridge
    """
    from fedloom.cli.common.logging import set_up  # noqa: PLC0415 - it imports grpc

    set_up(log_format, log_level)
    _require_flower()
    from fedloom.client.supernodes.bridge import run as serve  # noqa: PLC0415 - it imports flwr

    serve(directory, ready)


def _require_flower() -> None:
    from fedloom.protocol import extras  # noqa: PLC0415 - it imports grpc

    extras.flower("for a bridge")
