"""`fedloom server`: create a server and run it.

The command line loads this module by name. It imports nothing heavy: `fedloom.server.app` tunes
the allocator, and must be the first to import grpc.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedloom.cli.common.lazy import LazyGroup, load
from fedloom.cli.common.options import DEFAULT_DIR, json_option, log_options, state_option
from fedloom.cli.common.output import duration, emit
from fedloom.cli.operator.server_logs import logs

if TYPE_CHECKING:
    from fedloom.server.config import ServerConfig
    from fedloom.server.storage.objects.interface import Objects
    from fedloom.server.storage.objects.inventory import Inventory


@click.group(cls=LazyGroup)
def server() -> None:
    """Create a server and run it."""


@server.command()
@state_option
@click.option("--federation", default="fedloom", show_default=True, help="Part of every identity.")
@click.option(
    "--fleet",
    show_default="0.0.0.0:7443",
    metavar="HOST:PORT",
    help="Address for enrolled clients.",
)
@click.option(
    "--enrolment",
    show_default="0.0.0.0:7444",
    metavar="HOST:PORT",
    help="Address for devices that enrol by a token.",
)
@click.option(
    "--public-name",
    default="",
    metavar="NAME",
    help="Host name of the proxy by whose port 443 all reach this server: NAME for the fleet, "
    "enroll.NAME for enrolment, console.NAME for operators (docs/one-door.md).",
)
@click.option(
    "--proxy",
    "proxies",
    multiple=True,
    metavar="ADDRESS",
    help="Address from which this proxy connects; may be repeated. Without it, the proxy is on "
    "this machine, and the server listens on loopback alone.",
)
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="NAME",
    help="Host name or address by which devices reach this server, beside localhost; "
    "may be repeated.",
)
@json_option
def init(
    *,
    directory: Path,
    federation: str,
    fleet: str | None,
    enrolment: str | None,
    public_name: str,
    proxies: tuple[str, ...],
    names: tuple[str, ...],
) -> None:
    """Create a server's state directory: its settings and its certificate authority.

    \b
    Examples:
      fedloom server init
      fedloom server init --dir /srv/fedloom --federation ward --name fl.example.org
      fedloom server init --public-name fl.example.org --proxy 192.0.2.10
    """
    addresses = {"fleet": fleet, "enrolment": enrolment}
    given = {name: address for name, address in addresses.items() if address is not None}
    made = create(directory, federation, names, public_name, proxies, **given)
    document = {
        "dir": str(directory),
        "federation": federation,
        "fleet": made.settings.fleet,
        "enrolment": made.settings.enrolment,
        "names": list(made.settings.certificate_names),
        "root_sha256": made.root_sha256,
        "mended": list(made.mended),
    }
    emit(document, lambda: _show_made(directory, federation, made))


@dataclass(frozen=True, slots=True)
class Made:
    """The result of `create`.

    Attributes:
        settings: of the server.
        root_sha256: fingerprint of the root certificate, hex.
        mended: files and folders that other users could read before, with their modes.
    """

    settings: "ServerConfig"
    root_sha256: str
    mended: tuple[str, ...]


def _hosts(*addresses: str) -> list[str]:
    """Hosts of the addresses that are not wildcards."""
    hosts = [address.rpartition(":")[0].strip("[]") for address in addresses]
    return [host for host in hosts if host not in {"", "*", "0.0.0.0", "::"}]  # noqa: S104 - not bound


def _behind_proxy(public_name: str, proxies: Sequence[str]) -> dict[str, Any]:
    """Settings of a server behind a proxy, on this machine if none is given."""
    from fedloom.protocol.errors import UsageError  # noqa: PLC0415 - the module says why
    from fedloom.server.public_names import PublicNames  # noqa: PLC0415

    if not public_name:
        if proxies:
            raise UsageError(
                "Expected --public-name with --proxy, got --proxy alone: say by which name devices "
                "and operators reach the proxy."
            )
        return {}
    PublicNames.parse(public_name)
    host = "0.0.0.0" if proxies else "127.0.0.1"  # noqa: S104 - so that the proxy reaches it
    ports = {"fleet": 7443, "enrolment": 7444, "console": 7445, "health": 7446}
    return {
        "public_name": public_name,
        "proxies": tuple(proxies) or (host,),
        **{name: f"{host}:{port}" for name, port in ports.items()},
    }


def create(
    directory: Path,
    federation: str,
    names: Sequence[str],
    public_name: str = "",
    proxies: Sequence[str] = (),
    **addresses: str,
) -> Made:
    """Create a server's state directory, private to its owner.

    An existing authority is kept: it may come from a backup or from an interrupted attempt.

    Args:
        directory: to create.
        federation: its name.
        names: by which devices reach the server, beside localhost.
        public_name: of a proxy that passes TLS on; empty for none.
        proxies: addresses of this proxy; none for one on this machine.
        addresses: `fleet` and `enrolment`, if they differ from the defaults.

    Raises:
        UsageError: the directory already has a server, or a setting is not valid.
    """
    from fedloom.protocol.errors import UsageError  # noqa: PLC0415 - the module says why
    from fedloom.protocol.trust.private_files import make_private, private_directory  # noqa: PLC0415
    from fedloom.server import config as configuration  # noqa: PLC0415
    from fedloom.server.pki.authority import Authority  # noqa: PLC0415
    from fedloom.server.pki.signing_key import FOLDER, SigningKey  # noqa: PLC0415

    if (directory / configuration.FILE).exists():
        raise UsageError(
            f"There is a server in {directory} already: run it with `fedloom server run`, or "
            "choose another --dir."
        )
    names = (*configuration.ServerConfig().names, *_hosts(*addresses.values()), *names)
    behind = _behind_proxy(public_name, proxies)
    settings = configuration.ServerConfig(
        federation=federation, names=tuple(dict.fromkeys(names)), **(behind | addresses)
    )
    pki, now = directory / "pki", datetime.now(UTC)
    mended = make_private(private_directory(directory), configuration.PRIVATE)
    authority = Authority.load(pki) if pki.exists() else Authority.create(pki, federation, now)
    if authority.federation != federation:
        raise UsageError(
            f"The authority in {pki} is of the federation {authority.federation!r}, got "
            f"{federation!r}: use its name, or choose another --dir."
        )
    authority.ensure_server_certificate(settings.certificate_names, now)
    SigningKey.ensure(directory / FOLDER, federation)
    configuration.write(directory, settings)
    return Made(settings, authority.root_pin.hex(), tuple(mended))


def _show_made(directory: Path, federation: str, made: Made) -> None:
    there = "" if directory == Path(DEFAULT_DIR) else f" --dir {directory}"
    click.echo(
        f"Created a server for the federation {federation!r}:\n"
        f"  {directory / 'server.toml'}    settings\n"
        f"  {directory / 'pki'}/           certificate authority, for the names "
        f"{', '.join(made.settings.certificate_names)}\n"
        f"  {directory / 'signing'}/       key that signs offers and models\n"
        f"  root certificate SHA-256: {made.root_sha256}\n"
        + "".join(f"  taken from other users: {each}\n" for each in made.mended)
        + _public_words(made.settings)
        + f"\nKeep a copy of {directory / 'pki' / 'root.key'} and of {directory / 'signing'}/ "
        "in a safe place. Next:\n"
        f"  fedloom server run{there}\n"
        f"  fedloom console{there}         prints a login link to the console\n"
        f"  fedloom token create{there}    creates a token that enrols a device"
    )


def _public_words(settings: "ServerConfig") -> str:
    """By which names it is reached, if by one port."""
    if settings.public is None:
        return ""
    fleet, enrolment, console = settings.public.hosts
    return (
        f"\nBehind a proxy on port {settings.public.port} "
        f"(deploy/haproxy/haproxy.cfg), at {', '.join(settings.proxies)}:\n"
        f"  {fleet}    enrolled devices\n"
        f"  {enrolment}    devices with a token\n"
        f"  {console}    operators\n"
    )


@server.command()
@state_option
@log_options
@click.option(
    "--plaintext-loopback",
    is_flag=True,
    help="No TLS and no certificates, for trials on this machine only.",
)
@click.option(
    "--upstream",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Sum the devices' updates for a parent server, as the client of these settings, which "
    "`fedloom client enroll` wrote.",
)
@click.option(
    "--ready",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the ports to this file once the server listens.",
)
def run(
    *,
    directory: Path,
    log_format: str,
    log_level: str,
    plaintext_loopback: bool,
    upstream: Path | None,
    ready: Path | None,
) -> None:
    """Run a server until SIGTERM or Ctrl-C. After a restart it resumes its runs.

    \b
    Examples:
      fedloom server run
      fedloom server run --dir /srv/fedloom --log-format json
      fedloom server run --dir /srv/north --upstream parent/client.toml
    """
    from fedloom.cli.common.logging import set_up  # noqa: PLC0415 - the module says why
    from fedloom.protocol.errors import UsageError  # noqa: PLC0415

    set_up(log_format, log_level)
    if upstream is not None:
        if plaintext_loopback:
            raise UsageError(
                "Expected --upstream or --plaintext-loopback, got both: a site's devices need "
                "certificates."
            )
        load("fedloom.site.process:run")(directory, upstream, ready=ready)
        return
    serve = load("fedloom.server.app:run")
    serve(directory, plaintext=plaintext_loopback, ready=ready)


@server.command()
@state_option
@json_option
def health(directory: Path) -> None:
    """Check that the server answers: exit status 0, or 5 if it does not.

    A replica that does not drive is as healthy as the one that drives.

    \b
    Example:
      fedloom server health --dir /srv/fedloom
    """
    from fedloom.cli.connection.api_client import Control  # noqa: PLC0415 - the module says why
    from fedloom.protocol.errors import UnavailableError  # noqa: PLC0415

    control = Control(directory)
    try:
        found = control.get("server")
    except UnavailableError:
        driver = control.get("standby")["driver"]  # which fails as well where nothing answers
        emit(
            {"alive": True, "driver": driver},
            lambda: click.echo(f"A replica answers, while {driver} drives."),
        )
        return
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
    """Replace the server's signing key by a new one.

    The old key signs the new one, so all clients accept it, also those that are offline now. A
    running server uses the new key from its next offer on. If the old key may have been stolen, let
    devices enrol again instead: a thief could endorse a key of their own.

    \b
    Example:
      fedloom server rotate-signing-key --dir /srv/fedloom
    """
    from fedloom.protocol.trust.signing import fingerprint  # noqa: PLC0415 - the module says why
    from fedloom.server import config as configuration  # noqa: PLC0415
    from fedloom.server.pki.signing_key import FOLDER, SigningKey  # noqa: PLC0415
    from fedloom.server.replicas.key_vault import key_writer  # noqa: PLC0415

    settings = configuration.load(directory)
    with key_writer(directory, settings) as write:
        held = SigningKey(directory / FOLDER, settings.federation, write)
        before, new = held.signer.public, held.rotate()
    document = {"before": before.hex(), "key": new.public.hex(), "rotations": len(new.chain)}
    emit(
        document,
        lambda: click.echo(
            f"The signing key is now\n  {fingerprint(new.public)}\nIt replaces\n"
            f"  {fingerprint(before)}\n"
            "which signed it: clients accept it with their next offer."
        ),
    )


@server.command("rotate-master-key")
@state_option
@click.option(
    "--finish",
    is_flag=True,
    help="Encrypt the ledger's keys under the next key, which every replica has by now.",
)
@json_option
def rotate_master_key(directory: Path, *, finish: bool) -> None:
    """Replace the key that encrypts the keys in the ledger of replicas.

    The first call makes master.key.next. Copy this file to every other replica, with mode 600, and
    call it again with --finish, where it was made. Servers run on: each uses the next key from when
    it meets keys that are encrypted under it. A replica without it does not drive. The old key
    stays in master.key.old, for backups of the database from before.

    \b
    Examples:
      fedloom server rotate-master-key --dir /srv/fedloom
      fedloom server rotate-master-key --finish --dir /srv/fedloom
    """
    from fedloom.server import config as configuration  # noqa: PLC0415 - the module says why
    from fedloom.server.replicas.key_vault import NEXT_KEY, opened_vault  # noqa: PLC0415

    with opened_vault(directory, configuration.load(directory)) as vault:
        if not finish:
            key, path = vault.prepare_rotation(), directory / NEXT_KEY
            emit(
                {"key": key, "file": str(path)},
                lambda: click.echo(
                    f"The next master key is\n  {key}\nin {path}. Copy this file to every other "
                    "replica, with mode 600. Then:\n  fedloom server rotate-master-key --finish"
                ),
            )
            return
        key, count = vault.rotate()
    emit(
        {"key": key, "keys": count},
        lambda: click.echo(
            f"The master key is now\n  {key}\nIt encrypts the {count} keys in the ledger. Keep a "
            "copy in a safe place. The old one is in master.key.old."
        ),
    )


@server.command()
@state_option
@click.option("--database", metavar="URL", help="The database to move to; empty: SQLite.")
@click.option("--store", metavar="URL", help="The object store to move to; empty: files.")
@json_option
def move(directory: Path, database: str | None, store: str | None) -> None:
    """Move a stopped server's ledger and models to another database or store.

    All rows, models and accepted updates of open rounds are copied and compared; then server.toml
    names the new place, where the rounds continue. Until then, the server is as before, and an
    interrupted move is repeated by the same command. What was copied stays where it was, as a
    backup.

    \b
    Examples:
      fedloom server move --database postgresql+psycopg://fedloom@db/fedloom --store s3://models/a
      fedloom server move --database "" --store ""
    """
    from fedloom.server import config as configuration  # noqa: PLC0415 - the module says why
    from fedloom.server.moving.server_move import move as move_all  # noqa: PLC0415

    now = configuration.load(directory)
    moved = move_all(
        directory,
        now.database if database is None else database,
        now.store if store is None else store,
        lambda step: click.echo(step, err=True),
    )
    emit(
        asdict(moved),
        lambda: click.echo(
            f"Moved {moved.models} models, {moved.updates} updates of open rounds "
            f"({moved.size_bytes} bytes) and "
            f"{sum(count for count, _ in moved.tables.values())} rows, and compared them. "
            f"{directory / configuration.FILE} has the new settings: `fedloom server run`."
        ),
    )


@click.group(cls=LazyGroup)
def store() -> None:
    """Check the object store of a server's models and updates."""


@store.command()
@state_option
@click.option(
    "--objects", "counts", is_flag=True,
    help="Look also whether every object that the ledger names is in the store.",
)  # fmt: skip
@json_option
def check(directory: Path, *, counts: bool) -> None:
    """Try what the server needs of its object store: exit status 0, or 5 if something fails.

    It writes an object of its own, reads it, a range of it and a listing, and deletes it. It needs
    the server's environment, for the credentials, and may run beside the server.

    \b
    Examples:
      fedloom store check --dir /srv/fedloom
      fedloom store check --objects          after a restore
    """
    from fedloom.protocol.errors import UnavailableError, UsageError  # noqa: PLC0415 - see above
    from fedloom.server import config as configuration  # noqa: PLC0415
    from fedloom.server.storage.objects.check import check_store  # noqa: PLC0415
    from fedloom.server.storage.objects.opening import open_objects  # noqa: PLC0415
    from fedloom.server.store_url import StoreUrl  # noqa: PLC0415

    settings = configuration.load(directory)
    if not settings.store:
        raise UsageError(
            f"Expected `store` in {directory / configuration.FILE}, got none: models and updates "
            "are files of this state directory."
        )
    url = StoreUrl.parse(settings.store)
    objects = open_objects(url)
    steps = check_store(objects)
    found = {step.name: step.error or "ok" for step in steps}
    works = not steps[-1].error
    document: dict[str, Any] = {"store": str(url), "steps": found}
    inventory = _inventory(directory, settings, objects) if counts and works else None
    if inventory is not None:
        document |= {"objects": inventory.count, "lost": inventory.lost}
    emit(document, lambda: _show_steps(str(url), found, inventory))
    if not works:
        raise UnavailableError(f"{url} fails at {steps[-1].name}. {steps[-1].advice}")
    if inventory is not None and inventory.lost:
        raise UnavailableError(
            f"{url} lacks {len(inventory.lost)} objects that the ledger names: restore them from a "
            "backup, or from the bucket's versions."
        )


def _inventory(directory: Path, settings: "ServerConfig", objects: "Objects") -> "Inventory":
    from fedloom.server.ledger import Ledger  # noqa: PLC0415 - the module says why
    from fedloom.server.storage.objects.inventory import take_inventory  # noqa: PLC0415
    from fedloom.server.storage.objects.retries import RetriedObjects  # noqa: PLC0415

    ledger = Ledger.in_directory(directory, settings.database)
    try:
        return take_inventory(ledger, RetriedObjects(objects))
    finally:
        ledger.close()


def _show_steps(url: str, found: Mapping[str, str], inventory: "Inventory | None") -> None:
    click.echo(url)
    for name, result in found.items():
        click.echo(f"  {name:<15} {result}")
    if inventory is None:
        return
    for name, what in sorted(inventory.lost.items()):
        click.echo(f"  missing         {name} of {what}")
    lost, count = len(inventory.lost), inventory.count
    click.echo(f"  {'objects':<15} " + (f"{lost} of {count} missing" if lost else f"{count} ok"))
