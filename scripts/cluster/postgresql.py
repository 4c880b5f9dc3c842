"""PostgreSQL on loopback: where its programs are, and the commands that make and run a server."""

import os
import shutil
import subprocess
from pathlib import Path

from fedloom.protocol.errors import UnavailableError

USER = "postgres"
"""The superuser; also whom the server runs as where this process is root's: it refuses root."""


def programs() -> Path | None:
    """The folder of PostgreSQL's programs; None where it is not installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if found:
        return found[-1].parent
    path = shutil.which("initdb")
    return None if path is None else Path(path).parent


def create(data: Path) -> None:
    """Make an empty server in a folder, whose parents USER can enter.

    Raises:
        UnavailableError: PostgreSQL says that it cannot.
    """
    _fill(data, "initdb", "-A", "trust", "-U", USER)


def copy(data: Path, port: int, name: str) -> None:
    """Make a standby of a running server in a folder; it is that server's under this name.

    Raises:
        UnavailableError: PostgreSQL says that it cannot.
    """
    source = f"host=127.0.0.1 port={port} user={USER} application_name={name}"
    _fill(data, "pg_basebackup", "-d", source, "-R", "-X", "stream", "-c", "fast")


def promote(data: Path) -> None:
    """Let a standby become a primary; return when it is one.

    Raises:
        UnavailableError: PostgreSQL says that it cannot.
    """
    _do("pg_ctl", "promote", "-D", str(data))


def _fill(data: Path, name: str, *arguments: str) -> None:
    data.mkdir(mode=0o700)
    if os.getuid() == 0:
        shutil.chown(data, USER, USER)
    _do(name, "-D", str(data), "--no-sync", *arguments)


def _do(name: str, *arguments: str) -> None:
    command = [*_program(name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    if done.returncode != 0:
        raise UnavailableError(f"{name} failed: {done.stdout}{done.stderr}".strip())


def command(data: Path, port: int) -> list[str]:
    """The command that runs the server of a folder; SIGINT ends it."""
    options = {
        "port": port,
        "listen_addresses": "127.0.0.1",
        "max_connections": 100,
        "unix_socket_directories": "",
    }
    settings = [f"-c{name}={value}" for name, value in options.items()]
    return [*_program("postgres"), "-D", str(data), *settings]


def answers(port: int) -> bool:
    """Whether the server accepts connections."""
    command = [*_program("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
    return subprocess.run(command, check=False, cwd="/").returncode == 0


def url(port: int, name: str = "postgres") -> str:
    """The setting `database`."""
    return f"postgresql+psycopg://{USER}@127.0.0.1:{port}/{name}"


def _program(name: str) -> list[str]:
    """A program, as USER where this process is root's."""
    where = programs()
    assert where is not None
    as_user = ["setpriv", "--reuid", USER, "--regid", USER, "--init-groups"]
    return [*(as_user if os.getuid() == 0 else []), str(where / name)]
