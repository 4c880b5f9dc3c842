"""Suggestions for commands that do not exist, at every level."""

import pytest
from click.testing import CliRunner

from fedloom.cli.main import main

MEANT = {
    "runn": "`fedloom run` or `fedloom round`",
    "runs list": "`fedloom run list` or",
    "clients list": "`fedloom client list`?",
    "RUN": "`fedloom run` or",
    "run lst": "`fedloom run list`?",
    "client runn x.py:client": "`fedloom client run`?",
    "token make": "`fedloom token create`?",
    "run create": "`fedloom run submit`?",
    "server start": "`fedloom server run`?",
    "submit run.toml": "`fedloom run submit`?",
    "run promote x": "`fedloom model promote`?",
    "reproduce mcmahan": "`fedloom reproduce mcmahan2017`?",
}


@pytest.mark.parametrize("words", MEANT)
def test_the_command_that_is_meant_is_suggested(words):
    """A misspelt word, another word for it, or a verb of another group."""
    done = CliRunner().invoke(main, words.split())
    assert done.exit_code == 2
    assert f"No such command '{words.split()[0]}'" in done.stderr or words.count(" ")
    assert f"Did you mean {MEANT[words]}" in done.stderr


def test_a_word_like_no_command_gets_no_suggestion():
    """Instead of a wrong one."""
    done = CliRunner().invoke(main, ["qqqq"])
    assert (done.exit_code, "Did you mean" in done.stderr) == (2, False)
