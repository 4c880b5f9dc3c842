"""The attack that the threshold is for, with real members: it needs one colluder too many.

Of seven members t = 5. The server tells all but the last that everybody shared and that member 5
dropped out. It tells the last that a small circle shared: itself, the colluders and member 5. Then
members 0 to 4 are a quorum without the last one; they reveal its self seed and the pair seed of
member 5. All masks of the last member are known, if it accepted the circle, which needs t members.
"""

import numpy as np
import pytest

from fedloom.protocol import masking
from fedloom.protocol.errors import Refusal
from fedloom.protocol.masking import keys
from fedloom.strategies.masking.sessions import colluders as tolerated_colluders
from support.mask_members import Session

N, T, GONE, LAST = 7, 5, 5, 6


class Attack:
    """A server with the secrets of some members; the others are honest."""

    def __init__(self, colluders):
        self.session = session = Session(N)
        self.stolen = {i: bytes(session.members[i]._secrets.pair_seed) for i in colluders}
        session.share()
        self.circle = frozenset(colluders) | {GONE, LAST}

    def trick_last(self):
        """The last member's body, plain and masked."""
        return self.session.mask(self.circle, [LAST])[LAST]

    def seeds(self):
        """What the quorum of the others reveals."""
        session, everyone = self.session, self.session.everyone
        survivors = masking.Survivors(shared=everyone, masked=everyone - {GONE})
        session.mask(everyone, range(T))
        signatures = {i: session.members[i].agree(survivors.masked) for i in range(T)}
        reveals = {i: session.members[i].reveal(signatures) for i in range(T)}
        dealt = dict(enumerate(session.dealt))
        return masking.recover(session.roster, survivors, dealt, reveals, {}).seeds

    def unmask_last(self, body, seeds):
        """The last member's body without the masks that are known."""
        roster = self.session.roster
        known = self.stolen | {GONE: seeds[GONE]}
        streams = [masking.MaskStream(keys.self_mask_key(seeds[LAST], roster.sid), -1)]
        for peer, seed in known.items():
            private = keys.pair_private(seed, roster.pid)
            names = (roster.names[peer], roster.names[LAST])
            key = keys.pair_mask_key(private, roster.advert(LAST).pair_key, roster.sid, names)
            streams.append(masking.MaskStream(key, 1))  # the last name subtracted it
        found = body.copy()
        masking.apply_streams(found, self.session.layout, streams)
        return found


def test_three_colluders_of_seven_read_an_update():
    """2t − n = 3: the circle is as large as the threshold."""
    attack = Attack({0, 1, 2})
    plain, body = attack.trick_last()
    assert np.array_equal(attack.unmask_last(body, attack.seeds()), plain)


def test_two_colluders_of_seven_do_not():
    """C = 2: the circle is below the threshold, and the last member ends the session."""
    assert tolerated_colluders(N) == 2
    attack = Attack({0, 1})
    with pytest.raises(Refusal, match="at least 5 of 7 members in U2"):
        attack.trick_last()


def test_two_colluders_and_an_honest_member_in_the_circle_leave_a_mask():
    """Filled up to the threshold, the circle has a member whose pair seed nobody rebuilds."""
    attack = Attack({0, 1})
    attack.circle |= {2}
    plain, body = attack.trick_last()
    found = attack.unmask_last(body, attack.seeds())
    values = [masking.read_values(attack.session.layout, each, 0, 5) for each in (found, plain)]
    assert (values[0] != values[1]).all()
