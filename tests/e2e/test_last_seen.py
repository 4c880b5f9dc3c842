"""When a client was last connected, after a stop of the server."""

import time

import pytest

from support.federation import Federation

pytestmark = pytest.mark.e2e


@pytest.mark.long
def test_clients_were_last_seen_when_the_server_stopped(runner, tmp_path):
    """Not when they connected, which may be days earlier."""

    async def scenery():
        federation = Federation(tmp_path)
        await federation.start()
        await federation.attend(federation.enrol("oak"))
        came = time.time()
        await federation.server.__aexit__(None, None, None)
        await federation.start()
        rows = federation.ledger.list_clients()
        await federation.stop()
        return came, next(row.seen_at for row in rows if row.name == "oak")

    came, seen_at = runner.run(scenery())
    assert seen_at is not None
    assert seen_at >= came
