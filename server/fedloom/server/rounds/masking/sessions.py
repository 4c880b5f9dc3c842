"""The sessions of a round that are open: roster, list, and what members sent for their peers.

Everything here follows from the ledger, so a restarted server has the same.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.masking import (
    SessionRoster,
    SharesMessage,
    Survivors,
    VerifiedAdvert,
    from_bitmap,
)
from fedloom.server.engine import MaskingSession, SessionState
from fedloom.server.rounds.masking.adverts import ReadyList


@dataclass(slots=True, kw_only=True)
class OpenSession:
    """One session, beside its state machine.

    Attributes:
        at: run, round and its number there.
        roster: its members.
        ready: the list that it was drawn from.
        state: that the ledger holds; the state machine may be ahead of it.
        dealt: member → the shares that it sent, as far as they were read.
    """

    at: tuple[str, int, int]
    roster: SessionRoster
    ready: ReadyList
    state: SessionState = SessionState.SHARING
    dealt: dict[int, SharesMessage] = field(default_factory=dict, repr=False)

    def index(self, client: str) -> int:
        """A member's number."""
        return self.roster.names.index(client)

    def indices(self, clients: Iterable[str]) -> frozenset[int]:
        """Members' numbers."""
        return frozenset(map(self.index, clients))

    def by_index(self, found: Mapping[str, bytes], clients: Collection[str]) -> dict[int, bytes]:
        """The messages of these members, by number."""
        return {self.index(c): raw for c, raw in sorted(found.items()) if c in clients}

    def survivors(self, session: MaskingSession) -> Survivors:
        """The survivors that members sign.

        Raises:
            Refusal: ROUND_CLOSED, they are not fixed.
        """
        if not session.masked:
            raise Refusal(
                Code.ROUND_CLOSED,
                f"Expected a session whose survivors are fixed, got one {session.state.value}.",
            )
        return Survivors(shared=self.indices(session.shared), masked=self.indices(session.masked))

    def read_shares(self, found: Mapping[str, bytes]) -> Mapping[int, SharesMessage]:
        """The shares that members dealt, read once."""
        for client, raw in found.items():
            if (dealer := self.index(client)) not in self.dealt:
                self.dealt[dealer] = self.shares(client, raw)
        return self.dealt

    def shares(self, client: str, raw: bytes) -> SharesMessage:
        """The shares that a member sends.

        Raises:
            Refusal: MALFORMED.
        """
        return SharesMessage.from_bytes(raw, self.index(client), self.roster.size)

    def complaint(self, client: str, raw: bytes, shared: Collection[str]) -> frozenset[int]:
        """The dealers that a member complains about.

        Raises:
            Refusal: MALFORMED.
        """
        found = from_bitmap(raw, self.roster.size)
        if not found or not found <= self.indices(shared) - {self.index(client)}:
            raise Refusal(
                Code.MALFORMED, "Expected a complaint about other members that shared, got another."
            )
        return found


def open_sessions(
    key: tuple[str, int], pid: bytes, rosters: Sequence[tuple[str, tuple[VerifiedAdvert, ...]]]
) -> dict[int, OpenSession]:
    """The sessions of a round by number.

    Args:
        key: run and round.
        pid: of the round's try.
        rosters: width class and members of session 0, 1, …; the sessions of a class in its order.
            No members: a session that is done, which is left out.
    """
    classes: dict[str, list[VerifiedAdvert]] = {}
    for name, members in rosters:
        classes.setdefault(name, []).extend(members)
    lists = {name: ReadyList.of(members) for name, members in classes.items()}
    seen = dict.fromkeys(classes, 0)
    found = {}
    for number, (name, members) in enumerate(rosters):
        if members:
            roster = SessionRoster(pid=pid, session=seen[name], members=members)
            found[number] = OpenSession(at=(*key, number), roster=roster, ready=lists[name])
        seen[name] += 1
    return found
