"""What has to be there before a cluster starts: programs, free ports, and no other cluster."""

import os
import pwd
import shutil
import socket
import subprocess
from pathlib import Path

from cluster import haproxy, postgresql
from cluster.settings import Settings
from fedloom.protocol.errors import UsageError


def check(folder: Path, settings: Settings) -> None:
    """Check all of them.

    Raises:
        UsageError: something is missing; says what to do.
    """
    if folder.exists():
        raise UsageError(
            f"Expected no cluster in {folder}, got one that runs or has ended: "
            "`make cluster-status` shows it, `make cluster-stop` removes it."
        )
    _check_programs()
    _check_ports(settings)


def check_enterable(folder: Path) -> None:
    """Check that PostgreSQL can run in a folder: it refuses to run as root.

    Raises:
        UsageError: the user whom it runs as instead cannot enter the folder.
    """
    if os.getuid() != 0:
        return
    enter = ["setpriv", "--reuid", postgresql.USER, "--regid", postgresql.USER, "--init-groups"]
    done = subprocess.run([*enter, "test", "-x", str(folder)], check=False, cwd="/")
    if done.returncode != 0:
        raise UsageError(
            f"Expected a folder that the user {postgresql.USER} can enter, as PostgreSQL does not "
            f"run as root, got {folder}: run `make cluster` as another user, or with "
            "CLUSTER=/var/tmp/cluster."
        )


def _check_programs() -> None:
    if haproxy.program() is None:
        raise UsageError(
            "Expected haproxy on this machine, got none: `sudo apt-get install haproxy` "
            "(and `sudo systemctl disable --now haproxy`, as this one has its own settings)."
        )
    if postgresql.programs() is None:
        raise UsageError(
            "Expected PostgreSQL's server (initdb, postgres) on this machine, got none: "
            "`sudo apt-get install postgresql`. Debian's own server is not used; "
            "`sudo systemctl disable --now postgresql` stops it."
        )
    if os.getuid() == 0 and (shutil.which("setpriv") is None or not _has_user(postgresql.USER)):
        raise UsageError(
            f"Expected setpriv and the user {postgresql.USER}, as PostgreSQL does not run as root, "
            "got one or none of them: run `make cluster` as another user."
        )


def _has_user(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def _check_ports(settings: Settings) -> None:
    for port, use in settings.ports.items():
        with socket.socket() as sock:
            # As servers do: connections that have just ended do not count.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind(("127.0.0.1", port))
            except OSError as error:
                raise UsageError(
                    f"Expected port {port} of 127.0.0.1 to be free for {use}, got "
                    f"{error.strerror}: `ss -ltnp sport = :{port}` says who has it; `make cluster "
                    "PORT=N` takes other ports, from N on."
                ) from None
