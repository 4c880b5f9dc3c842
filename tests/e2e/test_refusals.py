"""Every bad update gets its typed refusal, by name, and the round of the others goes on.

A real server over mTLS, a run with an open round, three clients in its cohort: mallory sends
something bad, alice and bob what they should. Whatever mallory sent, the model must come out with
the bits that the sum of the others' updates has, computed here from the algebra alone.
"""

import pytest

from fedloom.protocol.errors import Code
from support.arena import assert_recorded, assert_refused
from support.bad_updates import BAD_UPDATES


@pytest.mark.parametrize("name", BAD_UPDATES)
def test_bad_update_is_refused_by_type_and_disturbs_nobody(runner, arena, caplog, name):
    """The code reaches the sender, the ledger and the log; the sum of the others is exact."""
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
