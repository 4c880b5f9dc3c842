"""A replica on standby: it is healthy, and sends operators to the one that drives."""

import asyncio

from click.testing import CliRunner

from fedloom.cli.main import main
from fedloom.server.http import unix_socket
from fedloom.server.replicas import standby


def test_it_is_healthy_and_refuses_commands(tmp_path):
    """So a supervisor does not restart it."""

    def typed(*words):
        done = CliRunner().invoke(main, [*words, "--dir", str(tmp_path)])
        return done.exit_code, done.output

    async def ask():
        async with (
            unix_socket.listening(tmp_path / "control.sock") as listener,
            standby.answering(listener) as answers,
        ):
            answers.driven_by("fl-2")
            health = await asyncio.to_thread(typed, "server", "health")
            return health, await asyncio.to_thread(typed, "run", "list")

    (status, text), (refused, message) = asyncio.run(ask())
    assert (status, text) == (0, "A replica answers, while fl-2 drives.\n")
    assert refused == 5
    assert "fl-2 drives. Run the command there" in message
    gone, _ = typed("server", "health")
    assert gone
