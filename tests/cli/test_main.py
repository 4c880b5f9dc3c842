"""The frame around every command: help that teaches, errors as one line and an exit code."""

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


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_help_teaches(path):
    """Each command has a sentence of purpose and an example that names it."""
    result = _invoke(*path, "--help")
    assert result.exit_code == 0
    assert "Example" in result.output
    assert f" fedloom {' '.join(path)}" in result.output.partition("Example")[2]
    assert "\b" not in result.output
    assert r"\b" not in result.output  # in a raw docstring click does not know its mark


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_every_command_that_ends_prints_json_on_request(path):
    """Only what runs until it is stopped, or is a show for people, has none."""
    without = {("server", "run"), ("client", "run"), ("demo",), ("completion",)}
    assert ("--json" in _invoke(*path, "--help").output) is (path not in without)


def test_help_of_the_whole_lists_groups_and_exit_codes():
    """What a newcomer needs is on the first page."""
    output = _invoke("--help").output
    for group, lazily in COMMANDS.items():
        assert group in output
        assert lazily.help in " ".join(output.split())
    assert "Exit codes:" in output
    assert all(f"\n    {code}  " in output for code in (0, 1, 2, 3, 4, 5, 130))


@pytest.mark.parametrize("group", list(COMMANDS))
def test_lazy_help_is_the_groups_own(group):
    """The list's line must not drift from the group."""
    command = main.get_command(click.Context(main), group)
    assert command.get_short_help_str(100) == COMMANDS[group].help


def test_version():
    """One line, for bug reports."""
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
    """On standard error, and nothing on standard output."""
    result = _invoke("leaf", "--needed", "x", command=_raising(error))
    assert result.exit_code == code
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(("error", "code", "kind"), ERRORS, ids=lambda v: str(v)[:20])
def test_errors_are_json_for_those_who_asked(error, code, kind):
    """One document on standard output, as every answer is."""
    result = _invoke("leaf", "--json", "--needed", "x", command=_raising(error))
    assert result.exit_code == code
    told = json.loads(result.stdout)["error"]
    assert (told["kind"], told["exit_code"]) == (kind, code)
    assert told.get("code") == (error.code if isinstance(error, Refusal) else None)


def test_wrong_arguments_are_json_too():
    """Wherever --json stands on the line."""
    result = _invoke("leaf", "--json", command=_raising(KeyError()))
    assert result.exit_code == 2
    assert json.loads(result.stdout)["error"]["kind"] == "usage"
    assert _invoke("leaf", command=_raising(KeyError())).stderr.startswith("Usage:")


def test_interrupt_ends_quietly():
    """Ctrl-C is no error."""
    result = _invoke("leaf", "--needed", "x", command=_raising(KeyboardInterrupt()))
    assert (result.exit_code, result.output) == (130, "")


def test_traceback_on_request(monkeypatch):
    """For those who report a fault."""
    monkeypatch.setenv("FEDLOOM_TRACEBACK", "1")
    result = _invoke("leaf", "--needed", "x", command=_raising(KeyError("k")))
    assert "Traceback" in result.stderr


def test_a_fault_inside_a_module_is_not_a_missing_extra(monkeypatch):
    """Telling people to install what they have would hide our own mistake."""
    monkeypatch.setattr(lazy, "EXTRAS", {"fedloom.cli": "server"})
    with pytest.raises(ModuleNotFoundError):
        lazy.load("fedloom.cli.nothing:x")
    group = lazy.LazyGroup(lazy={"x": LazyCommand("fedloom.nowhere:x", "No such thing.")})
    with pytest.raises(ModuleNotFoundError):
        group.get_command(click.Context(group), "x")
