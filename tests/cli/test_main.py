"""Help, errors and exit codes of all commands."""

import json

import click
import pytest
from click.testing import CliRunner

from fedloom.cli.common import lazy
from fedloom.cli.common.lazy import LazyCommand
from fedloom.cli.common.options import json_option
from fedloom.cli.main import COMMANDS, Root, main
from fedloom.protocol.errors import (
    Code,
    FedloomError,
    IntegrityError,
    Refusal,
    UnavailableError,
    UsageError,
)
from fedloom.protocol.version import __version__


def _invoke(*args, command=main):
    return CliRunner().invoke(command, args)


def _leaves(group=main, path=()):
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from _leaves(command, (*path, name))
        else:
            yield (*path, name)


LEAVES = list(_leaves())


def _help(*path):
    """The help of a command, which must not show the mark that click removes."""
    result = CliRunner().invoke(main, [*path, "--help"], env={"COLUMNS": "80"})
    assert result.exit_code == 0
    assert "\b" not in result.output
    assert r"\b" not in result.output
    return result.output


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_help_has_an_example_on_its_own_line(path):
    """Each command's help has an example that names the command."""
    text = _help(*path)
    assert f" fedloom {' '.join(path)}" in text.partition("Example")[2]
    for line in text.splitlines():
        assert not line.strip().startswith(("Example:", "Examples:")) or line.endswith(":")


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_commands_have_a_json_option(path):
    """All but those that run until stopped, the demo, and the completion script."""
    without = {("server", "run"), ("client", "run"), ("bridge", "run"), ("demo",), ("completion",)}
    assert ("--json" in _help(*path)) is (path not in without)


def test_main_help_lists_groups_and_exit_codes():
    """Every group and every exit code is listed."""
    output = _invoke("--help").output
    for group, lazily in COMMANDS.items():
        assert group in output
        assert lazily.help in " ".join(output.split())
    assert "Exit codes:" in output
    assert all(f"\n    {code}  " in output for code in (0, 1, 2, 3, 4, 5, 130))


@pytest.mark.parametrize("group", list(COMMANDS))
def test_lazy_help_equals_the_groups_help(group):
    """The list of commands shows the first sentence of each group's help."""
    _help(group)
    command = main.get_command(click.Context(main), group)
    assert command.get_short_help_str(100) == COMMANDS[group].help


def test_version():
    """One line."""
    assert _invoke("--version").output == f"fedloom {__version__}\n"


ERRORS = [
    (UsageError("wrong"), 2, "usage"),
    (Refusal(Code.REVOKED, "no"), 3, "refused"),
    (IntegrityError("rotten"), 4, "integrity"),
    (UnavailableError("gone"), 5, "unavailable"),
    (FedloomError("odd"), 1, "internal"),
    (OSError(28, "No space left on device"), 5, "unavailable"),
    (KeyError("surprise"), 1, "internal"),
]


def _raising(error):
    @click.group(cls=Root)
    def root():
        pass

    @root.command()
    @json_option
    @click.option("--needed", required=True)
    def leaf(needed):
        raise error

    return root


@pytest.mark.parametrize(("error", "code", "kind"), ERRORS, ids=lambda v: str(v)[:20])
def test_errors_are_one_line_and_an_exit_code(error, code, kind):
    """On standard error; standard output is empty."""
    result = _invoke("leaf", "--needed", "x", command=_raising(error))
    assert result.exit_code == code
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(("error", "code", "kind"), ERRORS, ids=lambda v: str(v)[:20])
def test_errors_are_json_with_the_option(error, code, kind):
    """One document on standard output."""
    result = _invoke("leaf", "--json", "--needed", "x", command=_raising(error))
    assert result.exit_code == code
    told = json.loads(result.stdout)["error"]
    assert (told["kind"], told["exit_code"]) == (kind, code)
    assert told.get("code") == (error.code if isinstance(error, Refusal) else None)


def test_argument_errors_are_json_with_the_option():
    """At any position of --json."""
    result = _invoke("leaf", "--json", command=_raising(KeyError()))
    assert result.exit_code == 2
    assert json.loads(result.stdout)["error"]["kind"] == "usage"
    assert _invoke("leaf", command=_raising(KeyError())).stderr.startswith("Usage:")


def test_interrupt_ends_quietly():
    """Ctrl-C is exit 130 without output."""
    result = _invoke("leaf", "--needed", "x", command=_raising(KeyboardInterrupt()))
    assert (result.exit_code, result.output) == (130, "")


def test_traceback_on_request(monkeypatch):
    """FEDLOOM_TRACEBACK=1 prints it."""
    monkeypatch.setenv("FEDLOOM_TRACEBACK", "1")
    result = _invoke("leaf", "--needed", "x", command=_raising(KeyError("k")))
    assert "Traceback" in result.stderr


def test_import_error_inside_fedloom_is_not_a_missing_extra(monkeypatch):
    """The message about a missing extra would hide the bug."""
    monkeypatch.setattr(lazy, "EXTRAS", {"fedloom.cli": "server"})
    with pytest.raises(ModuleNotFoundError):
        lazy.load("fedloom.cli.nothing:x")
    group = lazy.LazyGroup(lazy={"x": LazyCommand("fedloom.nowhere:x", "No such thing.")})
    with pytest.raises(ModuleNotFoundError):
        group.get_command(click.Context(group), "x")
