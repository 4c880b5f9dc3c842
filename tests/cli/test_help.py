"""Help as it is printed: click's marks do their work and are not seen."""

import click
import pytest
from click.testing import CliRunner

from fedloom.cli.main import main


def _commands():
    """Every command and group that can be asked for help, by its words."""
    context = click.Context(main)
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        yield (name,)
        if isinstance(command, click.Group):
            yield from ((name, leaf) for leaf in command.list_commands(context))


@pytest.mark.parametrize("words", list(_commands()), ids=" ".join)
def test_examples_stand_on_lines_of_their_own(words):
    """A raw docstring would hand click a backslash and a b, and run the examples together."""
    printed = CliRunner().invoke(main, [*words, "--help"], env={"COLUMNS": "80"}).output
    assert "\\b" not in printed
    for line in printed.splitlines():
        assert not line.strip().startswith(("Example:", "Examples:")) or line.endswith(":")
