"""A state directory has one agent at most."""

import os
import signal

import pytest

from fedloom.client.state.process_lock import FILE, only_agent
from fedloom.protocol.errors import UnavailableError, UsageError
from support.locks import hold


def test_a_second_agent_is_refused_and_told_which_one_runs(tmp_path):
    """Until the first has ended, however that ends."""
    process, _ = hold(tmp_path)
    try:
        with pytest.raises(UsageError, match=f"process {process.pid}"), only_agent(tmp_path):
            pass
    finally:
        process.kill()
        process.communicate()
    with only_agent(tmp_path):
        assert (tmp_path / FILE).read_text() == str(os.getpid())


def test_a_child_of_an_agent_that_was_killed_keeps_nobody_out(tmp_path):
    """Workers of the training code may outlive the agent."""
    process, child = hold(tmp_path, "fork")
    try:
        process.kill()
        process.wait()
        with only_agent(tmp_path):
            os.kill(child, 0)  # it lives
    finally:
        os.kill(child, signal.SIGKILL)
        process.communicate()


def test_a_second_agent_of_the_same_process_is_refused(tmp_path):
    """A process's own locks are none to itself."""
    with only_agent(tmp_path), pytest.raises(UsageError), only_agent(tmp_path):
        pass


def test_a_directory_that_cannot_be_written_to_is_said_to_be_so(tmp_path):
    """In words, and not by the round that it fails."""
    (tmp_path / FILE).mkdir()
    with pytest.raises(UnavailableError, match="can be written to"), only_agent(tmp_path):
        pass
