"""`fedloom client`: enrolment, the agent and its settings; other commands load on first use."""

import asyncio
import os
import shlex
import sys
from pathlib import Path

import click

from fedloom.cli.common import output
from fedloom.cli.common.lazy import LazyCommand, LazyGroup
from fedloom.cli.common.options import config_option, json_option, log_options, warn_if_visible

ORDER = (
    *("enroll", "doctor", "test", "run", "config", "policy", "log", "model", "leave"),
    *("health", "install-service", "uninstall-service", "service-file"),
    *("list", "show", "quarantine", "drain", "release", "revoke", "label", "note", "study"),
)
LAZY = {
    name: LazyCommand(f"fedloom.cli.{target}", line)
    for name, target, line in (
        ("health", "device.health:client_health", "Check whether this device's agent is alive."),
        (
            "install-service",
            "device.install_service:install",
            "Install the agent as a sandboxed systemd service.",
        ),
        ("uninstall-service", "device.install_service:uninstall", "Stop and remove that service."),
        (
            "service-file",
            "device.service_file:service_file",
            "Write a file that starts the agent at boot, on macOS or Windows.",
        ),
        ("doctor", "device.doctor:doctor", "Find problems of this device, with remedies."),
        ("policy", "device.policy:policy", "Check the policy of this device's owner."),
        ("log", "device.log:log", "Show what this device sent, when and to whom."),
        ("test", "device.test:test", "Check a client's code locally, without a server."),
        ("leave", "device.leave:leave", "Leave the federation and wipe this device."),
        ("model", "device.model:model", "Get the model that the operator promoted; export it."),
        (
            "list",
            "operator.clients:list_clients",
            "List enrolled clients: presence, task, and certificate expiry.",
        ),
        ("show", "operator.clients:show", "Show a client and its latest rounds."),
        (
            "quarantine",
            "operator.clients:quarantine",
            "Stop selecting a client, and refuse its updates.",
        ),
        (
            "drain",
            "operator.clients:drain",
            "Let a client finish its task, then stop selecting it.",
        ),
        ("shares", "operator.clients:shares", "Show how often clients were asked, by a label."),
        ("release", "operator.clients:release", "Select a client again after quarantine or drain."),
        ("revoke", "operator.clients:revoke", "Revoke a client and its certificates."),
        ("label", "operator.clients:label", "Set or remove labels of a client."),
        ("note", "operator.clients:note", "Set the note about a client."),
        ("devices", "operator.clients:devices", "Register a site for a number of devices."),
        ("study", "operator.clients:study", "Move a client to a study."),
    )
}


@click.group(cls=LazyGroup, lazy=LAZY, order=ORDER)
def client() -> None:
    """Enrol and run a device; list clients and choose which are selected.

    The commands from `list` on are for the operator, the others for the device.
    """


@client.command()
@click.option("--server", required=True, metavar="HOST:PORT", help="The server's enrolment port.")
@click.option(
    "--token",
    required=True,
    envvar="FEDLOOM_TOKEN",
    show_envvar=True,
    callback=warn_if_visible,
    metavar="TOKEN|@FILE",
    help="From the operator; @FILE reads it from a file, so that other users cannot see it.",
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(),
    metavar="DIR",
    help="Folder for client.toml and the device's keys. Default: the current one.",
)
@json_option
def enroll(server: str, token: str, directory: Path) -> None:
    """Enrol this device as a client. Its private key is generated here and never leaves the device.

    The token authenticates this device to the server, and the server to this device.

    \b
    Example:
      fedloom client enroll --server fl.example.org:7444 --token @ward-3.token
    """
    from fedloom.client.identity.enrol import enrol  # noqa: PLC0415 - the operator's commands need no grpc

    config = directory / "client.toml"
    name = asyncio.run(enrol(server, token_text(token), config))
    output.emit_text(
        {"client": name, "config": str(config)},
        f"Enrolled as {name}; settings in {config}.\n"
        f"Next:\n  fedloom client run my_client.py:client --config {shlex.quote(str(config))}",
    )


def token_text(given: str) -> str:
    """The token of `--token TOKEN|@FILE`.

    Raises:
        UsageError: the file cannot be read.
    """
    if not given.startswith("@"):
        _check_no_path(given)
        return given
    try:
        return Path(given[1:]).read_text()
    except (OSError, UnicodeDecodeError) as error:
        from fedloom.protocol.errors import UsageError  # noqa: PLC0415 - it imports grpc

        raise UsageError(f"Cannot read the token in {given[1:]}: {error}.") from None


def _check_no_path(given: str) -> None:
    if len(given) < 200 and Path(given).is_file():
        from fedloom.protocol.errors import UsageError  # noqa: PLC0415 - it imports grpc

        raise UsageError(f"Expected a token, got the name of a file: --token @{given} reads it.")


@client.command()
@click.argument("code", metavar="FILE.py:NAME|MODULE:NAME", required=False, default="")
@click.option(
    "--flower", default="", metavar="FILE.py:APP|MODULE:APP", help="Run a Flower ClientApp."
)
@config_option
@log_options
def run(code: str, flower: str, config: Path, log_format: str, log_level: str) -> None:
    """Connect to the server and train when selected, until stopped.

    NAME is a `fedloom.client.Client`, or a class or function without arguments that returns one. It
    is loaded and trains in a process of its own, which the agent replaces if it crashes; with
    isolation = "none" in client.toml, and under torchrun, in this process.

    \b
    Examples:
      fedloom client run my_client.py:client
      fedloom client run my_package.clients:Digits --config /etc/fedloom/client.toml
      fedloom client run --flower quickstart.client_app:app
      torchrun --nproc-per-node 2 -m fedloom.cli.main client run my_client.py:client
    """
    if bool(code) == bool(flower):
        raise click.UsageError("Expected either FILE.py:NAME|MODULE:NAME or --flower.")
    from fedloom.cli.common.logging import set_up  # noqa: PLC0415 - as above
    from fedloom.client.agent.agent import attend  # noqa: PLC0415
    from fedloom.client.agent.training_process import Program  # noqa: PLC0415
    from fedloom.client.config import load  # noqa: PLC0415
    from fedloom.client.training.ranks import ranks  # noqa: PLC0415

    set_up(log_format, log_level)
    if ranks() is None and (settings := load(config)).isolation == "process":
        options = ("--log-format", log_format, "--log-level", log_level, "--config", str(config))
        code_of = ("--flower", flower) if flower else (code,)
        # -P: a file of the current folder must not hide a package that fedloom imports.
        child = (sys.executable, "-P", "-m", "fedloom.cli.device.training_child")
        command = (*child, *options, *code_of)
        attend(Program(command, settings.keep_warm_s), settings)
        return
    from fedloom.cli.common.load_code import load_client, load_flower  # noqa: PLC0415
    from fedloom.client import run as run_here  # noqa: PLC0415

    if ranks() is not None:  # the agent logs a lost rank; torch would add C++ stack traces
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    run_here(load_flower(flower, config) if flower else load_client(code), config=config)


@client.command("config")
@config_option
@json_option
def show_config(config: Path) -> None:
    """Print the settings in effect, and the source of each.

    An environment variable overrides client.toml, which overrides the default.

    \b
    Example:
      fedloom client config --config /etc/fedloom/client.toml
    """
    from fedloom.client import config as settings  # noqa: PLC0415 - as above
    from fedloom.protocol.settings import declared, value_of  # noqa: PLC0415
    from fedloom.protocol.settings.toml import text_of  # noqa: PLC0415

    loaded = settings.read(config)
    rows = [
        (s.key, value_of(loaded.config, s), loaded.sources.get(s.key, "default"))
        for s in declared(settings.ClientConfig)
    ]
    found = {
        key: {"value": str(value) if isinstance(value, Path) else value, "source": source}
        for key, value, source in rows
    }
    texts = [(key, text_of(value), source) for key, value, source in rows]
    widths = [max(len(row[i]) for row in texts) for i in (0, 1)]
    output.emit_text(
        {"settings": found},
        "\n".join(f"{k:<{widths[0]}}  {v:<{widths[1]}}  {source}" for k, v, source in texts),
    )
