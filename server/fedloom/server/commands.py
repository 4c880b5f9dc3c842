"""`fedloom server`: make a server and run it.

The command line loads this by name. Nothing heavy is imported here: `fedloom.server.app` tunes the
allocator, and must be the first to import grpc.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import click

from fedloom.cli.common.lazy import LazyGroup, load
from fedloom.cli.common.options import DEFAULT_DIR, json_option, state_option
from fedloom.cli.common.output import duration, emit
from fedloom.cli.operator.server_logs import logs


@click.group(cls=LazyGroup)
def server() -> None:
    """Make a server and run it."""


@server.command()
@state_option
@click.option("--federation", default="fedloom", show_default=True, help="Part of every identity.")
@click.option(
    "--fleet",
    default="0.0.0.0:7443",
    show_default=True,
    metavar="HOST:PORT",
    help="Where enrolled clients connect.",
)
@click.option(
    "--enrolment",
    default="0.0.0.0:7444",
    show_default=True,
    metavar="HOST:PORT",
    help="Where devices with a token enrol.",
)
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="NAME",
    help="A host name or address by which devices reach this server, beside localhost; "
    "may be repeated.",
)
@json_option
def init(
    directory: Path, federation: str, fleet: str, enrolment: str, names: tuple[str, ...]
) -> None:
    """Make a server's state directory: its settings and its own certificate authority.

    \b
    Examples:
      fedloom server init
      fedloom server init --dir /srv/fedloom --federation ward --name fl.example.org
    """
    made = create(directory, federation, fleet, enrolment, names)
    document = {
        "dir": str(directory),
        "federation": federation,
        "fleet": fleet,
        "enrolment": enrolment,
        "names": list(made.names),
        "root_sha256": made.root_sha256,
    }
    emit(document, lambda: _show_made(directory, federation, made))


@dataclass(frozen=True, slots=True)
class Made:
    """What `create` made.

    Attributes:
        names: in the server's certificate.
        root_sha256: fingerprint of the root certificate, hex.
    """

    names: tuple[str, ...]
    root_sha256: str


def _hosts(*addresses: str) -> list[str]:
    """What devices connect by where a server listens at one address alone."""
    hosts = [address.rpartition(":")[0].strip("[]") for address in addresses]
    return [host for host in hosts if host not in {"", "*", "0.0.0.0", "::"}]  # noqa: S104 - not bound


def create(
    directory: Path, federation: str, fleet: str, enrolment: str, names: Sequence[str]
) -> Made:
    """Make a server's state directory, private to its owner.

    An authority that is there already is kept: it may have been restored, or an earlier attempt
    may have been cut off.

    Raises:
        UsageError: there is a server already, or a setting is not what it must be.
    """
    from fedloom.protocol.errors import UsageError  # noqa: PLC0415 - the module says why
    from fedloom.protocol.trust.private_files import private_directory  # noqa: PLC0415
    from fedloom.server import config as configuration  # noqa: PLC0415
    from fedloom.server.pki.authority import Authority  # noqa: PLC0415
    from fedloom.server.pki.signing_key import FOLDER, SigningKey  # noqa: PLC0415

    if (directory / configuration.FILE).exists():
        raise UsageError(
            f"Expected no server in {directory}, got one: run it with `fedloom server run`, or "
            "choose another --dir."
        )
    defaults = configuration.ServerConfig()
    settings = configuration.ServerConfig(
        federation=federation,
        fleet=fleet,
        enrolment=enrolment,
        names=tuple(dict.fromkeys((*defaults.names, *_hosts(fleet, enrolment), *names))),
    )
    pki, now = directory / "pki", datetime.now(UTC)
    private_directory(directory)
    authority = Authority.load(pki) if pki.exists() else Authority.create(pki, federation, now)
    if authority.federation != federation:
        raise UsageError(
            f"Expected the federation of {pki}, {authority.federation!r}, got {federation!r}."
        )
    authority.ensure_server_certificate(settings.names, now)
    SigningKey.ensure(directory / FOLDER, federation)
    configuration.write(directory, settings)
    return Made(settings.names, authority.root_pin.hex())


def _show_made(directory: Path, federation: str, made: Made) -> None:
    there = "" if directory == Path(DEFAULT_DIR) else f" --dir {directory}"
    click.echo(
        f"Made a server for the federation {federation!r}:\n"
        f"  {directory / 'server.toml'}    settings\n"
        f"  {directory / 'pki'}/           its certificate authority, for names "
        f"{', '.join(made.names)}\n"
        f"  {directory / 'signing'}/       the key that its offers and models are signed by\n"
        f"  root certificate SHA-256: {made.root_sha256}\n"
        f"\nKeep a copy of {directory / 'pki' / 'root.key'} and of {directory / 'signing'}/ "
        "somewhere safe. Next:\n"
        f"  fedloom server run{there}\n"
        f"  fedloom console{there}         a link into the web console, once it runs\n"
        f"  fedloom token create{there}    an invitation for a device"
    )


@server.command()
@state_option
@click.option(
    "--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
)
@click.option(
    "--plaintext-loopback",
    is_flag=True,
    help="No TLS and no certificates, for trials on this machine alone.",
)
@click.option(
    "--ready",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the ports there once it listens.",
)
def run(
    directory: Path, log_format: str, log_level: str, plaintext_loopback: bool, ready: Path | None
) -> None:
    """Run a server until SIGTERM or Ctrl-C. Restarted, it goes on where it was.

    \b
    Examples:
      fedloom server run
      fedloom server run --dir /srv/fedloom --log-format json
    """
    from fedloom.cli.common.logging import set_up  # noqa: PLC0415 - the module says why

    set_up(log_format, log_level)
    serve = load("fedloom.server.app:run")
    serve(directory, plaintext=plaintext_loopback, ready=ready)


@server.command()
@state_option
@json_option
def health(directory: Path) -> None:
    """Say whether the server answers: ends with 0, or with 5 where it does not.

    \b
    Example:
      fedloom server health --dir /srv/fedloom
    """
    from fedloom.cli.connection.api_client import Control  # noqa: PLC0415 - the module says why

    found = Control(directory).get("server")
    emit(
        {"alive": True, "version": found["version"], "uptime_s": found["uptime_s"]},
        lambda: click.echo(
            f"{found['federation']} answers, up for {duration(found['uptime_s'])}, "
            f"with {found['clients_online']} clients online."
        ),
    )


server.add_command(logs)


@server.command("rotate-signing-key")
@state_option
@json_option
def rotate_signing_key(directory: Path) -> None:
    """Put a new signing key in the place of the present one.

    The old key signs a statement over the new one, so that clients follow by themselves, also those
    that are offline now. A running server signs by the new key from its next offer on. Where
    somebody else may have the old key, let devices enrol again instead: it can vouch for any key.

    \b
    Example:
      fedloom server rotate-signing-key --dir /srv/fedloom
    """
    from fedloom.protocol.trust.signing import fingerprint  # noqa: PLC0415 - the module says why
    from fedloom.server import config as configuration  # noqa: PLC0415
    from fedloom.server.pki.signing_key import FOLDER, SigningKey  # noqa: PLC0415

    settings = configuration.load(directory)
    held = SigningKey(directory / FOLDER, settings.federation)
    before, new = held.signer.public, held.rotate()
    document = {"before": before.hex(), "key": new.public.hex(), "rotations": len(new.chain)}
    emit(
        document,
        lambda: click.echo(
            f"The signing key is now\n  {fingerprint(new.public)}\nand was\n"
            f"  {fingerprint(before)}\n"
            "which vouches for it: clients follow at their next offer."
        ),
    )
