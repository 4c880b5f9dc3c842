"""Who is at fault when seeds cannot be rebuilt, and what the server can then still do."""

from dataclasses import replace

import numpy as np
import pytest

from fedloom.protocol import masking
from fedloom.protocol.masking import shamir, shares
from support.mask_members import Session

N, T = 7, 5


class Server:
    """A session of seven of which one, 6, did not mask; all survivors revealed."""

    def __init__(self, *, forge=lambda session: None):
        self.session = session = Session(N).share()
        forge(session)
        everyone = session.everyone
        self.complaints = {
            i: session.members[i].receive(everyone, session.sealed(i, everyone)) for i in range(N)
        }
        self.plain = np.zeros(session.layout.size_bytes, np.uint8)
        self.total = self.plain.copy()
        for i in range(6):
            body = masking.write_body(session.layout, [np.arange(5) - i], [i])
            masking.add_body(self.plain, session.layout, body)
            session.members[i].mask(body, session.layout)
            masking.add_body(self.total, session.layout, body)
        self.survivors = masking.Survivors(shared=everyone, masked=everyone - {6})
        signatures = session.agree(self.survivors.masked)
        self.reveals = {i: session.members[i].reveal(signatures) for i in range(6)}

    def recover(self):
        return masking.recover(
            *(self.session.roster, self.survivors, dict(enumerate(self.session.dealt))),
            *(self.reveals, self.complaints),
        )

    def alter(self, revealer, dealer):
        changed = dict(self.reveals[revealer].shares)
        changed[dealer] = bytes([changed[dealer][0] ^ 1]) + changed[dealer][1:]
        self.reveals[revealer] = masking.RevealMessage(changed)

    def sums(self, found):
        total = self.total.copy()
        roster = self.session.roster
        left = masking.leftover_masks(roster, self.survivors, found.seeds)
        masking.apply_streams(total, self.session.layout, left)
        return (total == self.plain).all()


def test_the_seeds_that_are_rebuilt_are_of_one_kind_each():
    server = Server()
    found = server.recover()
    assert found.complete
    assert server.sums(found)
    assert found.seeds.keys() == set(range(N))


def test_a_quorum_of_reveals_suffices():
    server = Server()
    del server.reveals[3]
    assert server.sums(server.recover())
    del server.reveals[5]
    found = server.recover()
    assert not found.complete
    assert found.short == set(range(N))
    assert not found.seeds


def test_reveals_of_members_outside_u3_do_not_count():
    """Not even shares that fit: member 6 has not signed these survivors."""
    server = Server()
    held = server.session.members[6]._shares
    right = {i: bytes(both[0 if i == 6 else 1]) for i, both in held.items()}
    server.reveals[6] = masking.RevealMessage(right)
    del server.reveals[0], server.reveals[1]
    assert server.recover().short == set(range(N))


def test_a_false_share_convicts_its_revealer():
    """Nothing of it is used, and five others suffice."""
    server = Server()
    server.alter(2, 4)
    found = server.recover()
    assert (found.false_revealers, found.false_dealers) == ({2}, set())
    assert server.sums(found)


def test_two_false_revealers_leave_too_few():
    server = Server()
    server.alter(2, 4)
    server.alter(3, 6)
    found = server.recover()
    assert found.false_revealers == {2, 3}
    assert not found.complete


@pytest.mark.parametrize("part", ["ciphertext", "self_commitment"])
def test_shares_that_never_fitted_convict_nobody(part):
    """Dealer 4 and holder 2 disagree: the holder complained before it masked."""

    def forge(session):
        sealed = list(session.dealt[4].shares)
        raw = getattr(sealed[2], part)
        sealed[2] = replace(sealed[2], **{part: raw[:-1] + bytes([raw[-1] ^ 1])})
        session.dealt[4] = shares.SharesMessage(tuple(sealed))

    server = Server(forge=forge)
    assert server.complaints[2] == {4}
    found = server.recover()
    assert (found.false_revealers, found.false_dealers) == (set(), set())
    assert found.complete
    assert server.sums(found)
    server.reveals[2] = masking.RevealMessage({**server.reveals[2].shares, 4: bytes(32)})
    assert server.recover().false_revealers == set()
    assert server.sums(server.recover())


def test_a_dealer_whose_shares_give_another_secret_is_convicted():
    """All shares fit their commitments, and the seed is not the one of the advert."""

    def forge(session):
        session.members[4] = cheat = session.members[4]
        roster, secret = session.roster, 12345
        dealt = shamir.deal(secret, T, N, lambda n: bytes(n - 1) + b"\1")
        for holder in range(N):
            share = dealt[holder].to_bytes(32, "big")
            name = roster.names[holder]
            fits = shares.share_commitment(
                *(roster.sid, cheat.advert.name, name, masking.SeedKind.SELF, share)
            )
            sealed = list(session.dealt[4].shares)
            sealed[holder] = replace(sealed[holder], self_commitment=fits)
            session.dealt[4] = shares.SharesMessage(tuple(sealed))
            forged[holder] = share

    forged = {}
    server = Server(forge=forge)
    assert server.complaints[0] == {4}
    for i in range(6):
        server.reveals[i] = masking.RevealMessage({**server.reveals[i].shares, 4: forged[i]})
    found = server.recover()
    assert (found.false_revealers, found.false_dealers) == (set(), {4})
    assert not found.complete
    assert 4 not in found.seeds
