"""`fedloom client health`: a health check for containers and scripts."""

from pathlib import Path

import click

from fedloom.cli.common import output
from fedloom.cli.common.options import config_option, json_option


@click.command("health")
@config_option
@click.option("--attending", is_flag=True, help="Also require a connection to the server.")
@json_option
def client_health(config: Path, attending: bool) -> None:
    """Check whether this device's agent is alive: exit code 0, or 5 if it is not.

    An agent that waits for an unreachable server is alive: a restart would not help. One that
    checks in (attendance = "check-in") needs no connection until its next check-in is due.

    \b
    Example:
      fedloom client health --config /etc/fedloom/client.toml
    """
    from fedloom.client.config import load  # noqa: PLC0415 - it imports grpc
    from fedloom.client.state.health_file import read_health  # noqa: PLC0415
    from fedloom.protocol.errors import UnavailableError  # noqa: PLC0415

    state_dir = load(config).state_dir
    found = read_health(state_dir)
    if not found.alive:
        raise UnavailableError(f"No agent runs on {state_dir}.")
    does = "has been connected to" if found.attends else "has waited for"
    text = f"The agent {does} {found.server} since {output.moment(found.since)}."
    if found.due_at:
        text = f"The agent checks in with {found.server} next at {output.moment(found.due_at)}."
    if attending and not found.attends and not found.due_at:
        raise UnavailableError(text)
    output.emit_text(
        {
            "alive": True, "attends": found.attends, "server": found.server, "since": found.since,
            "due_at": found.due_at or None,
        },
        text,
    )  # fmt: skip
