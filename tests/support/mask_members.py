"""Masking sessions with real members and an honest server, for tests."""

from functools import cache

import numpy as np

from fedloom.protocol import masking
from fedloom.protocol.trust.identity import generate_key

CORE = bytes(range(32))


@cache
def private_key(name):
    """A client's certificate key, made once: keys are slow to make."""
    return generate_key()


def serial(name):
    return name.encode().hex().rjust(40, "0")[-40:]


def identify(advert):
    """Takes every name at its word, in place of a chain of certificates."""
    key = private_key(advert.name).public_key()
    return masking.CertifiedKey(name=advert.name, serial=serial(advert.name), key=key)


def terms(**changed):
    said = {"federation": "tests", "run": "digits", "round": 3, "attempt": 1, "core": CORE}
    return masking.RoundTerms(**(said | {"group": 64} | changed))


def member(name, asked=None, **settings):
    settings.setdefault("floors", masking.MaskingFloors(min_group=3))
    return masking.Member(
        asked or terms(),
        name=name,
        serial=serial(name),
        sign=masking.signer(private_key(name)),
        **settings,
    )


class Session:
    """Members of one session up to a phase; the server's messages can be told as a test likes.

    Attributes:
        members: in the order of the roster.
        dealt: what each sent when it knew its roster.
    """

    def __init__(self, n, **settings):
        self.members = [member(f"client-{i:02}", **settings) for i in range(n)]
        self.adverts = [each.advert for each in self.members]
        self.layout = masking.BodyLayout(sum_bits=32, num_values=5, num_words=1)
        self.everyone = frozenset(range(n))
        self.dealt, self.roster = [], None

    def share(self):
        self.dealt = [each.join(self.adverts, identify) for each in self.members]
        self.roster = self.members[0].roster
        return self

    def sealed(self, holder, shared):
        """What the server forwards to one member."""
        return {dealer: self.dealt[dealer].shares[holder] for dealer in shared - {holder}}

    def mask(self, shared=None, who=None):
        """Members accept U2 and mask bodies; returns member → (plain, masked)."""
        shared = self.everyone if shared is None else shared
        bodies = {}
        for i in sorted(shared if who is None else who):
            complaints = self.members[i].receive(shared, self.sealed(i, shared))
            assert not complaints
            plain = masking.write_body(self.layout, [values(i)], [i - 2])
            body = plain.copy()
            self.members[i].mask(body, self.layout)
            bodies[i] = plain, body
        return bodies

    def agree(self, masked=None):
        masked = self.everyone if masked is None else masked
        return {i: self.members[i].agree(masked) for i in sorted(masked)}


def values(member, bits=32):
    """The integers of a member's update; sums of some wrap."""
    large = 2 ** (bits - 2) - member
    return np.array([member, -member, large, -large, 17 * member], np.int64)


def play(n, left, layout):
    """Run a session whose members leave: i does not complete phase left[i] (0 to 3; 4: none).

    Returns:
        The sum's body, or the sentence with which the session was abandoned; and the plain bodies
        of U3.
    """
    session = Session(n)
    session.layout = layout
    session.share()
    shared, masked, revealed = (
        frozenset(i for i in range(n) if left[i] > phase) for phase in (1, 2, 3)
    )
    if len(shared) < session.roster.threshold:
        return "too few shared", {}
    total = np.zeros(layout.size_bytes, np.uint8)
    plain = {}
    for i in sorted(shared):
        session.members[i].receive(shared, session.sealed(i, shared))
        if i in masked:
            plain[i] = masking.write_body(layout, [values(i, layout.sum_bits)], [i - 2])
            body = plain[i].copy()
            session.members[i].mask(body, layout)
            masking.add_body(total, layout, body)
    if len(masked) < session.roster.threshold:
        return "too few masked", {}
    signatures = session.agree(masked)
    if len(revealed) < session.roster.threshold:
        return "too few revealed", {}
    survivors = masking.Survivors(shared=shared, masked=masked)
    reveals = {i: session.members[i].reveal(signatures) for i in revealed}
    dealt = dict(enumerate(session.dealt))
    found = masking.recover(session.roster, survivors, dealt, reveals, {})
    assert found.complete, found
    left_over = masking.leftover_masks(session.roster, survivors, found.seeds)
    masking.apply_streams(total, layout, left_over)
    return total, plain
