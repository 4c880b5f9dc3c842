"""At most one agent runs on a state directory."""

import os
import signal

import pytest

from fedloom.client.state.process_lock import FILE, only_agent
from fedloom.protocol.errors import UnavailableError, UsageError
from support.locks import hold


@pytest.mark.long
def test_a_second_agent_is_refused_with_the_pid_of_the_first(tmp_path):
    """Until the first process ends, also by a kill."""
    process, _ = hold(tmp_path)
    try:
        with pytest.raises(UsageError, match=f"process {process.pid}"), only_agent(tmp_path):
            pass
    finally:
        process.kill()
        process.communicate()
    with only_agent(tmp_path):
        assert (tmp_path / FILE).read_text() == str(os.getpid())


def test_a_child_of_a_killed_agent_does_not_hold_the_lock(tmp_path):
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
    """The kernel's lock does not prevent this."""
    with only_agent(tmp_path), pytest.raises(UsageError), only_agent(tmp_path):
        pass


def test_a_directory_that_cannot_be_written_to_is_reported(tmp_path):
    """At the start, not by a failed round."""
    (tmp_path / FILE).mkdir()
    with pytest.raises(UnavailableError, match="Cannot write to"), only_agent(tmp_path):
        pass
