"""docs/commands.md: its tables agree with the command line."""

import re
from pathlib import Path

import click

from fedloom.cli.main import EPILOG, main

PAGE = (Path(__file__).parents[2] / "docs" / "commands.md").read_text("utf-8")


def test_every_command_is_in_the_table():
    """And nothing that is not a command."""
    people = "operator|device|researcher|anybody"
    rows = re.findall(rf"^\| (`fedloom .*?) \| (?:{people})", PAGE, re.MULTILINE)
    listed = set()
    for row in rows:
        (group, *first), *others = (words.split() for words in re.findall("`([^`]*)`", row))
        group, *first = first  # the first word is fedloom
        listed |= {(group, *leaf) for leaf in [first, *others]}
    context = click.Context(main)
    there = set()
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        leaves = command.list_commands(context) if isinstance(command, click.Group) else []
        there |= {(name, leaf) for leaf in leaves} or {(name,)}
    assert listed == there


def test_exit_codes_are_those_of_the_command_line():
    """The table and the epilogue of `fedloom --help` agree."""
    table = re.findall(r"^\| (\d+) \| (.*?) \|$", PAGE, re.MULTILINE)
    for code, meaning in table:
        assert f"  {code}  {meaning.replace('`', '')}\n" in EPILOG
    assert len(table) == len(re.findall(r"^  \d+  ", EPILOG, re.MULTILINE))
