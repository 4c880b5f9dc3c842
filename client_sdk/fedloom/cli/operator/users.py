"""`fedloom user`: the users of the console."""

import sys
from pathlib import Path

import click

from fedloom.cli.common import output
from fedloom.cli.common.lazy import LazyGroup
from fedloom.cli.common.options import F, scope_option, server_options, study_option
from fedloom.cli.connection.api_client import Control
from fedloom.cli.operator.confirm import confirm, yes_option
from fedloom.protocol.errors import UsageError
from fedloom.protocol.trust.private_files import read_private


@click.group(cls=LazyGroup)
def user() -> None:
    """Manage the users of the console and their permissions.

    A viewer reads everything, an operator also controls runs and clients, an admin also manages
    users and tokens.
    """


def _password_option(function: F) -> F:
    return click.option(
        "--password-file",
        type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
        metavar="FILE",
        help="File with the password, readable only by its owner; - for standard input. "
        "Default: prompt for it.",
    )(function)


@user.command()
@click.argument("name")
@scope_option(required=True)
@_password_option
@study_option
@server_options
def add(
    name: str, scope: str, password_file: Path | None, studies: tuple[str, ...], directory: Path
) -> None:
    """Add a user; prompts for the password.

    \b
    Example:
      fedloom user add ann --scope operator
      fedloom user add eve --scope viewer --study cardio
    """
    password = _password(password_file)
    body = {"name": name, "scope": scope, "password": password, "studies": list(studies) or None}
    made = Control(directory).post("users", body=body)
    output.emit_text(made, f"{made['name']} can log in with scope {made['scope']}.")


@user.command("list")
@server_options
def list_users(directory: Path) -> None:
    """List users by name.

    \b
    Example:
      fedloom user list
    """
    found = Control(directory).get("users")
    rows = (
        (
            output.escape(u["name"]),
            u["scope"],
            output.moment(u["created_at"]),
            output.moment(u["seen_at"]),
        )
        for u in found["users"]
    )
    output.emit_table(
        found,
        ("NAME", "SCOPE", "ADDED", "LAST LOGIN"),
        rows,
        "No users yet. Add one with `fedloom user add NAME --scope admin`.",
    )


@user.command()
@click.argument("name")
@_password_option
@server_options
def passwd(name: str, password_file: Path | None, directory: Path) -> None:
    """Change a user's password and end all sessions of the user.

    \b
    Example:
      fedloom user passwd ann
    """
    body = {"password": _password(password_file)}
    changed = Control(directory).post("users", name, "password", body=body)
    output.emit_text(changed, f"{name} has a new password and is logged out.")


@user.command("scope")
@click.argument("name")
@scope_option(required=True)
@server_options
def set_scope(name: str, scope: str, directory: Path) -> None:
    """Change a user's permissions, starting with the next request.

    \b
    Example:
      fedloom user scope ann --scope viewer
    """
    changed = Control(directory).post("users", name, "scope", body={"scope": scope})
    output.emit_text(changed, f"{name} now has the scope {scope}.")


@user.command()
@click.argument("name")
@server_options
def logout(name: str, directory: Path) -> None:
    """End all sessions of a user.

    \b
    Example:
      fedloom user logout ann
    """
    found = Control(directory).post("users", name, "logout")
    output.emit_text(found, f"{name} is logged out.")


@user.command()
@click.argument("name")
@yes_option
@server_options
def remove(name: str, directory: Path) -> None:
    """Remove a user, the user's sessions, and API tokens that the user created.

    \b
    Example:
      fedloom user remove ann
    """
    confirm(f"{name} can no longer log in. Sessions of {name} and API tokens from {name} end now.")
    removed = Control(directory).post("users", name, "remove")
    output.emit_text(removed, f"{name} is removed.")


def _password(file: Path | None) -> str:
    if file is None:
        if not sys.stdin.isatty():
            raise UsageError("Without a terminal this needs --password-file FILE, or - for stdin.")
        return str(click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    if str(file) == "-":
        text = sys.stdin.read()
    else:
        try:
            text = read_private(file).decode()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"Cannot read the password in {file}: {error}.") from None
    return text.split("\n", 1)[0].rstrip("\r")
