"""Whatever a server sends, in whatever order: what one member may say at most."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.protocol import masking
from fedloom.protocol.errors import Refusal
from fedloom.protocol.masking.statements import AGREE
from fedloom.protocol.trust.signed_bytes import to_sign
from support.mask_members import Session, identify, private_key

N = 5
EVERYONE = frozenset(range(N))
SETS = [EVERYONE, EVERYONE - {4}, EVERYONE - {3}, EVERYONE - {0}, frozenset({0})]
STEPS = st.tuples(
    st.sampled_from(["join", "receive", "mask", "agree", "reveal", "close", "end"]),
    st.sampled_from(SETS),
    st.sampled_from(SETS),
)
IN_ORDER = ["join", "receive", "mask", "agree", "reveal"]


class Told:
    """One member, and everything that it says to a server that can make any quorum."""

    def __init__(self):
        session = Session(N)
        self.who, *self.peers = session.members
        self.adverts = session.adverts
        for peer in self.peers:
            peer.join(self.adverts, identify)
        self.roster = self.peers[0].roster
        self.shares = {i: peer._dealt.message.shares[0] for i, peer in enumerate(self.peers, 1)}
        self.agreed, self.revealed, self.closed, self.bodies = {}, [], set(), 0

    def join(self, shown, _):
        self.who.join([self.adverts[i] for i in sorted(shown)], identify)

    def receive(self, shared, _):
        self.who.receive(shared, {i: self.shares[i] for i in shared - {0}})

    def mask(self, *_):
        layout = masking.BodyLayout(sum_bits=32, num_values=2, num_words=0)
        self.who.mask(np.zeros(layout.size_bytes, np.uint8), layout)
        self.bodies += 1

    def agree(self, shared, masked):
        self.agreed[self.who.agree(masked)] = masked

    def reveal(self, shared, masked):
        digest = self.roster.agreement(masking.Survivors(shared=shared | masked, masked=masked))
        names = self.roster.names
        signatures = {
            i: masking.signer(private_key(names[i]))(to_sign(AGREE, digest)) for i in masked
        }
        self.revealed.append(self.who.reveal(signatures))

    def close(self, *_):
        self.closed.add(self.who.close())

    def end(self, *_):
        self.who.end("The session took too long.")


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.lists(STEPS, min_size=1, max_size=2), st.sampled_from(SETS[:2]))
def test_a_member_says_one_thing_at_most(honest, lies, masked):
    """One body, one set of survivors, one share of each member, and never AGREE beside CLOSED."""
    told = Told()
    steps = [(name, EVERYONE, EVERYONE) for name in IN_ORDER[:honest]]
    steps += [*lies, *((name, EVERYONE, masked) for name in IN_ORDER[honest - 1 :])]
    for step in steps:
        try:
            getattr(told, step[0])(*step[1:])
        except (Refusal, ValueError, KeyError) as error:
            assert str(error)  # noqa: PT017 - most orders are refused
    assert told.bodies <= 1
    assert len(set(told.agreed.values())) <= 1
    assert not (told.agreed and told.closed)
    assert not (told.revealed and not told.agreed)
    assert all(each == told.revealed[0] for each in told.revealed)
    for each in told.revealed[:1]:
        (masked,) = set(told.agreed.values())
        survivors = masking.Survivors(shared=EVERYONE, masked=masked)
        assert masking.RevealMessage.from_bytes(each.to_bytes(survivors), survivors) == each
