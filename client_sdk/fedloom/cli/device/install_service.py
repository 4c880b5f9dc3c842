"""`fedloom client install-service`: the agent as a sandboxed systemd service with its own user."""

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from fedloom.cli.common import output
from fedloom.cli.common.options import json_option

UNITS = Path("/etc/systemd/system")
RUNNING = Path("/run/systemd/system")
"""Exists where systemd is the init system (sd_booted(3))."""
_NAME = re.compile(r"[a-z_][a-z0-9_-]{0,30}")


def _check_name(_: click.Context, __: click.Parameter, value: str) -> str:
    if not _NAME.fullmatch(value):
        raise click.BadParameter(f"expected letters, digits, - and _ in lower case, got {value!r}")
    return value


_name_option = click.option(
    "--name",
    default="fedloom-client",
    show_default=True,
    callback=_check_name,
    help="Name of the service and of its folder in /var/lib.",
)


@click.command("install-service")
@click.argument("code", metavar="FILE.py:NAME|MODULE:NAME")
@_name_option
@click.option(
    "--user",
    default="fedloom",
    show_default=True,
    callback=_check_name,
    help="User to run as; created without a login if missing.",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="FEDLOOM_CONFIG",
    metavar="FILE",
    help="The device's client.toml. Default: /var/lib/NAME/client.toml.",
)
@click.option("--gpu", is_flag=True, help="Allow access to GPUs and other devices.")
@click.option("--dry-run", is_flag=True, help="Print what would be done; change nothing.")
@json_option
def install(  # noqa: PLR0917 - click passes them by name
    code: str, name: str, user: str, config: Path | None, gpu: bool, dry_run: bool
) -> None:
    """Install this device's agent as a sandboxed systemd service with its own user.

    Enrol first, into the folder of the service. The service starts now and at every boot. It
    restarts after a failure, unless its settings are wrong or the server refuses it permanently.

    \b
    Example:
      sudo fedloom client enroll --server fl.example.org:7444 --token @ward-3.token \\
        --dir /var/lib/fedloom-client
      sudo fedloom client install-service /opt/ward/my_client.py:client
    """
    path = (config or Path("/var/lib") / name / "client.toml").resolve()
    target = UNITS / f"{name}.service"
    if not dry_run:
        _check_possible(f"install {target}")
    unit, paths = _unit(absolute_code(code), path, user, gpu=gpu)
    text = unit.text()
    steps = [
        f"create the user {user}, without a login" if not _exists(user) else f"use the user {user}",
        *(f"give {path} to {user}" for path in paths),
        f"write {target}",
        f"start it now and at every boot: systemctl enable --now {name}",
    ]
    document = {
        "unit": str(target),
        "text": text,
        "user": user,
        "steps": steps,
        "done": not dry_run,
    }
    if dry_run:
        output.emit(document, lambda: _show_plan(steps, text))
        return
    _install(user, paths, target, text)
    output.emit(document, lambda: _show_done(name, steps))


@click.command("uninstall-service")
@_name_option
@click.option("--dry-run", is_flag=True, help="Print what would be done; change nothing.")
@json_option
def uninstall(name: str, dry_run: bool) -> None:
    """Stop the service and remove its unit. The device stays enrolled and keeps its state.

    \b
    Example:
      sudo fedloom client uninstall-service
    """
    target = UNITS / f"{name}.service"
    steps = [f"stop it: systemctl disable --now {name}", f"remove {target}"]
    if not dry_run:
        _check_possible(f"remove {target}")
        if not target.exists():
            raise click.UsageError(f"There is no service {target}. Name another with --name.")
        _system("systemctl", "disable", "--now", name)
        target.unlink()
        _system("systemctl", "daemon-reload")
    document = {"unit": str(target), "steps": steps, "done": not dry_run}
    kept = f"\nKept: /var/lib/{name} and its user. `fedloom client leave` leaves the federation."
    verb = "Would" if dry_run else "Done:"
    output.emit_text(document, "\n".join(f"{verb} {step}." for step in steps) + kept)


def _check_possible(what: str) -> None:
    """Refuse what is not Linux with systemd, or a user that is not root."""
    if sys.platform == "win32" or not RUNNING.is_dir():
        raise click.UsageError(
            f"Cannot {what}: systemd does not run here (there is no {RUNNING}). In a container, "
            "let its engine restart `fedloom client run`. --dry-run prints the unit."
        )
    if os.geteuid() != 0:
        raise click.UsageError(
            f"Cannot {what}: this needs root, but the user is {os.geteuid()}. Run it with sudo; "
            "give the full path of fedloom if sudo does not find it. --dry-run needs no root."
        )


def absolute_code(code: str) -> str:
    """The code with an absolute path, so that it does not depend on the working directory."""
    where, _, name = code.rpartition(":")
    if not where or not name:
        raise click.UsageError(f"Expected FILE.py:NAME or MODULE:NAME, got {code!r}.")
    if not where.endswith(".py"):
        return code
    path = Path(where).resolve()
    if not path.is_file():
        raise click.UsageError(f"There is no file {path}.")
    return f"{path}:{name}"


def _unit(code: str, config: Path, user: str, *, gpu: bool) -> tuple[Any, list[Path]]:
    from fedloom.cli.device.systemd_unit import Unit  # noqa: PLC0415
    from fedloom.client.config import load  # noqa: PLC0415 - it imports grpc

    settings = load(config)
    state = settings.state_dir.resolve()
    library = config.parent if config.parent.parent == Path("/var/lib") else None
    inside = library is not None and state.is_relative_to(library)
    file = Path(code.rpartition(":")[0])
    executable = Path(sys.executable)
    homes = (Path("/home"), Path("/root"), Path("/run/user"))
    temporaries = (Path("/tmp"), Path("/var/tmp"))  # noqa: S108 - compared, not written
    touched = (config, state, executable, executable.resolve(), *([file] if file.is_file() else []))
    unit = Unit(
        command=(str(executable), "-m", "fedloom.cli.main", "client", "run", code,
                 "--config", str(config)),
        user=user,
        state_directory=library.name if library is not None else "",
        writable=() if inside else (state,),
        working=file.parent if file.is_file() else config.parent,
        stop_s=settings.interruptions.stop_s,
        compiles=find_spec("torch") is not None,
        gpu=gpu,
        home=any(path.is_relative_to(home) for path in touched for home in homes),
        temporary=any(path.is_relative_to(tmp) for path in touched for tmp in temporaries),
        systemd=_version(),
    )  # fmt: skip
    own = [config, *([settings.policy] if settings.policy else []), state]
    return unit, [path for path in own if path.exists()]


def _version() -> int:
    """The version of systemd; 0 if unknown."""
    systemctl = shutil.which("systemctl")
    if systemctl is None:
        return 0
    done = subprocess.run([systemctl, "--version"], capture_output=True, text=True, check=False)  # noqa: S603
    found = re.match(r"systemd (\d+)", done.stdout)
    return int(found[1]) if found else 0


def _exists(user: str) -> bool:
    if sys.platform == "win32":
        return False
    import pwd  # noqa: PLC0415 - POSIX has it

    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def _install(user: str, paths: list[Path], target: Path, text: str) -> None:
    if not _exists(user):
        _system("useradd", "--system", "--user-group", "--no-create-home", "--home-dir",
                "/nonexistent", "--shell", "/usr/sbin/nologin", user)  # fmt: skip
    for path in paths:
        _system("chown", "-R", "-h", f"{user}:", str(path))
    target.write_text(text)
    _system("systemctl", "daemon-reload")
    _system("systemctl", "enable", "--now", target.stem)


def _system(*command: str) -> None:
    """Run a system command; raises its output as an UnavailableError if it fails."""
    from fedloom.protocol.errors import UnavailableError  # noqa: PLC0415 - it imports grpc

    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        printed = (done.stderr or done.stdout).strip() or f"exit code {done.returncode}"
        raise UnavailableError(f"`{' '.join(command)}` failed: {printed}")


def _numbered(title: str, steps: list[str]) -> str:
    return "\n".join((title, *(f"  {n}. {step}" for n, step in enumerate(steps, 1))))


def _show_plan(steps: list[str], text: str) -> None:
    click.echo(f"{_numbered('Would, as root:', steps)}\n\nThe unit:\n\n{text}", nl=False)


def _show_done(name: str, steps: list[str]) -> None:
    named = "" if name == "fedloom-client" else f" --name {name}"
    click.echo(
        f"{_numbered('Done:', steps)}\n\n"
        f"Log:     journalctl -u {name} -f\n"
        f"Status:  systemctl status {name}\n"
        f"Edit:    systemctl edit {name}\n"
        f"Remove:  fedloom client uninstall-service{named}"
    )
