"""Options and types that commands share."""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from fedloom.cli.common.output import JSON

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_DIR = "./fedloom-server"

_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_DURATION = re.compile(r"(\d+(?:\.\d*)?)\s*([a-z]*)")


class Duration(click.ParamType[float]):
    """A duration in seconds above 0, written as `90`, `90s`, `15m`, `24h`, `7d` or `2w`."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Convert text or a number to seconds."""
        if isinstance(value, int | float):
            return float(value)
        match = _DURATION.fullmatch(value.strip().lower())
        unit = _UNITS.get(match[2] or "s") if match else None
        if match is None or unit is None or not math.isfinite(seconds := float(match[1]) * unit):
            self.fail(f"expected a duration like 90s, 15m, 24h or 7d, got {value!r}", param, ctx)
        if not seconds:
            self.fail(f"expected a duration above 0, such as 15m, got {value!r}", param, ctx)
        return seconds


FILE = click.Path(path_type=Path, dir_okay=False, exists=True)
"""A file that exists."""


def out_option(text: str, flag: str = "--out", *, required: bool = False) -> Callable[[F], F]:
    """`--out`: a file to write; `text` is the help."""
    path = click.Path(path_type=Path, dir_okay=False)
    return click.option(flag, type=path, metavar="FILE", required=required, help=text)


def state_option(function: F) -> F:
    """`--dir`: a server's state directory on this machine."""
    return click.option(
        "--dir",
        "directory",
        type=click.Path(path_type=Path),
        envvar="FEDLOOM_DIR",
        default=DEFAULT_DIR,
        show_default=True,
        show_envvar=True,
        metavar="DIR",
        help="The server's state directory.",
    )(function)


def server_options(function: F) -> F:
    """`--json`, and the server: `--dir` on its machine, or `--url` and an API token from anywhere.

    The function receives the directory; `Control` reads the other options from the context.
    """
    function = json_option(function)
    for flag, metavar, variable, text in _REMOTE:
        function = click.option(
            flag,
            metavar=metavar,
            envvar=variable,
            expose_value=False,
            callback=_remember_remote,
            help=f"{text}  [env var: {variable}]",
        )(function)
    return state_option(function)


def _remember_remote(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if parameter.name == "api_token":
        warn_if_visible(ctx, parameter, value)
    ctx.meta[f"fedloom.{parameter.name}"] = value


def warn_if_visible(
    ctx: click.Context, parameter: click.Parameter, value: str | None
) -> str | None:
    """Warn of a secret on the command line itself, where lists of processes show it to all users.

    A callback of an option whose value may be @FILE.
    """
    source = ctx.get_parameter_source(parameter.name or "")
    if value and not value.startswith("@") and source is click.core.ParameterSource.COMMANDLINE:
        flag, variable = parameter.opts[0], parameter.envvar
        click.echo(
            f"warning: other users of this machine can see the value of {flag} in the list of "
            f"processes. Pass {flag} @FILE, or set {variable}.",
            err=True,
        )
    return value


_REMOTE = (
    ("--ca", "FILE", "FEDLOOM_CA", "With --url: a CA certificate, PEM. Default: the system's."),
    (
        "--api-token",
        "TOKEN|@FILE",
        "FEDLOOM_API_TOKEN",
        "With --url: from `fedloom api-token create`; @FILE reads it from a file.",
    ),
    ("--url", "URL", "FEDLOOM_URL", "A remote server, such as https://fl.example.org:7445."),
)
"""Options for a remote server, in reverse, because click reverses the order of decorators."""


def scope_option(
    *, default: str | None = None, required: bool = False, least: str = "viewer"
) -> Callable[[F], F]:
    """`--scope`: permissions; `least` is the lowest choice."""
    reading = "metrics reads /metrics only; " if least == "metrics" else ""
    scopes = ["metrics", "viewer", "operator", "admin"]
    return click.option(
        "--scope",
        type=click.Choice(scopes[scopes.index(least) :]),
        default=default,
        required=required,
        show_default=default is not None,
        help=f"{reading}viewer reads, operator also acts, admin also grants access.",
    )


def study_option(function: F) -> F:
    """`--study`: limits a user or an API token to studies."""
    return click.option(
        "--study",
        "studies",
        metavar="NAME",
        multiple=True,
        help="Limit it to this study's runs and clients; repeatable.",
    )(function)


def study_filter_option(function: F) -> F:
    """`--study`: lists only what is of a study."""
    return click.option(
        "--study", metavar="NAME", default="", help="Only those of this study; `-`: of none."
    )(function)


def json_option(function: F) -> F:
    """`--json`: one JSON document instead of text."""

    def remember(ctx: click.Context, _: click.Parameter, value: bool) -> None:
        ctx.meta[JSON] = value

    return click.option(
        "--json",
        is_flag=True,
        is_eager=True,  # set before another option is rejected
        expose_value=False,
        callback=remember,
        help="Print one JSON document.",
    )(function)


def log_options(function: F) -> F:
    """Options of a process that logs: `--log-format` and `--log-level`."""
    level = click.option(
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error"]),
        default="info",
        show_default=True,
    )
    kind = click.option(
        "--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True
    )
    return kind(level(function))


def _settings_in(_context: click.Context, _option: click.Parameter, given: Path) -> Path:
    """The settings of a device whose folder was given."""
    return given / "client.toml" if given.is_dir() else given


config_option = click.option(
    "--config",
    type=click.Path(path_type=Path),
    callback=_settings_in,
    envvar="FEDLOOM_CONFIG",
    show_envvar=True,
    default=Path("client.toml"),
    show_default=True,
    help="The device's settings, from `fedloom client enroll`, or their folder. Environment "
    "variables override it.",
)
