"""Every invalid update gets its typed refusal, and the round of the other clients continues.

A real server over mTLS has a run with an open round and three members. Mallory sends an invalid
update, alice and bob valid ones. The model must have the bits of the sum of the valid updates,
computed here by hand.
"""

import pytest

from fedloom.protocol.errors import Code
from support.arena import assert_recorded, assert_refused
from support.bad_updates import BAD_UPDATES


@pytest.mark.parametrize("name", BAD_UPDATES)
def test_bad_update_is_refused_by_type(runner, arena, caplog, name):
    """Sender, ledger and log have the code; the sum of the others is exact."""
    code, change = BAD_UPDATES[name]

    async def scene():
        async with arena.open_round() as opened:
            forged = opened.honest("mallory")
            body = change(forged)
            spooled = arena.federation.spool_bytes()
            answer = await opened.send("mallory", forged, body)
            assert_refused(answer, code)
            assert answer.message
            assert_recorded(arena, caplog, code, "mallory")
            if code is Code.TOO_LARGE:
                assert arena.federation.spool_bytes() == spooled
            assert await opened.finish() == arena.digest

    runner.run(scene())
