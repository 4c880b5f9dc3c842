"""The state of a folder's federation: one `fedloom up` at a time uses it, or removes it."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from fedloom.cli.connection.api_client import Control
from fedloom.client.state.process_lock import FILE as LOCK
from fedloom.client.state.process_lock import only_agent
from fedloom.protocol.errors import FedloomError, UsageError
from fedloom.simulation.project.local_project import LocalProject


@contextmanager
def only_one_up(project: LocalProject) -> Iterator[None]:
    """Hold a folder's state; two at once would make two servers in it.

    Raises:
        UsageError: another process holds it, or its server runs.
        UnavailableError: the folder cannot be written to.
    """
    in_use = UsageError(
        f"The server of {project.folder} runs already, such as by another `fedloom up`. End that "
        "one with Ctrl-C first."
    )
    project.state.mkdir(mode=0o700, exist_ok=True)
    with ExitStack() as held:
        try:
            held.enter_context(only_agent(project.state))
        except UsageError:
            raise in_use from None
        if _answers(project):  # a server that was started by hand
            raise in_use
        yield


def _answers(project: LocalProject) -> bool:
    try:
        Control(project.state / "server").get("server")
    except FedloomError:
        return False
    return True


def remove_state(project: LocalProject) -> None:
    """Remove servers, clients and logs; the lock stays."""
    for path in project.state.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != LOCK:
            path.unlink()
