"""`fedloom client health`: a yes or no for containers and scripts."""

from pathlib import Path

import click

from fedloom.cli.common import output
from fedloom.cli.common.options import config_option, json_option


@click.command("health")
@config_option
@click.option(
    "--attending", is_flag=True, help="Also expect the server to have it; else it may wait."
)
@json_option
def client_health(config: Path, attending: bool) -> None:
    """Say whether this device's agent is alive: ends with 0, or with 5 where it is not.

    An agent that waits for a server out of reach is well: to restart it would mend nothing.

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
        raise UnavailableError(f"Expected an agent that runs over {state_dir}, got none.")
    if attending and not found.attends:
        raise UnavailableError(f"Expected an agent that attends, got one that waits for "
                               f"{found.server} since {output.moment(found.since)}.")  # fmt: skip
    does = "attends" if found.attends else "waits for"
    output.emit(
        {"alive": True, "attends": found.attends, "server": found.server, "since": found.since},
        lambda: click.echo(f"The agent {does} {found.server} since {output.moment(found.since)}."),
    )
