"""The roster of a masking session: its members, in the order of their names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.masking.advert_checks import VerifiedAdvert
from fedloom.protocol.masking.adverts import Advert
from fedloom.protocol.masking.draw import draw_sessions
from fedloom.protocol.masking.encoding import session_id, to_bitmap
from fedloom.protocol.masking.statements import (
    AGREE,
    CLOSED,
    agree_digest,
    check_signature,
    closed_digest,
)
from fedloom.protocol.masking.survivors import Survivors
from fedloom.strategies.masking.sessions import threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRoster:
    """The members of a session, U1; a member is its index here, from 0.

    Attributes:
        pid: of the round's try.
        session: index among the sessions of its class, from 0.
        members: sorted by name.
        sid: of the session, from all of the above.
        names: of the members, sorted.
    """

    pid: bytes
    session: int
    members: tuple[VerifiedAdvert, ...]
    sid: bytes = field(init=False)
    names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        statements = (each.advert.digest() for each in self.members)
        object.__setattr__(self, "sid", session_id(self.pid, self.session, statements))
        object.__setattr__(self, "names", tuple(each.advert.name for each in self.members))

    @property
    def size(self) -> int:
        """Members, n."""
        return len(self.members)

    @property
    def threshold(self) -> int:
        """Members whose signatures and shares a reveal needs, t."""
        return threshold(self.size)

    def advert(self, member: int) -> Advert:
        """The advert of a member."""
        return self.members[member].advert

    def check_agreement(
        self, survivors: Survivors, signatures: Mapping[int, bytes], *, quorum: bool = True
    ) -> None:
        """Check signatures over one pair of survivor sets.

        Args:
            survivors: U2 and U3.
            signatures: member of U3 → its signature.
            quorum: t of them are needed; otherwise any number.

        Raises:
            Refusal: BAD_SIGNATURE, or MASKING_REFUSED if there are too few.
        """
        digest = self.agreement(survivors)
        signers = {m: s for m, s in signatures.items() if m in survivors.masked}
        self._check(AGREE, digest, signers, self.threshold if quorum else len(signatures))

    def agreement(self, survivors: Survivors) -> bytes:
        """The digest that a member signs to agree on survivors."""
        shared, masked = (to_bitmap(s, self.size) for s in (survivors.shared, survivors.masked))
        return agree_digest(self.sid, shared, masked)

    def check_closed(self, signatures: Mapping[int, bytes], *, quorum: bool = True) -> None:
        """Check signatures by which members closed the session.

        t of them prove that t reveals can never come: the members that are left are fewer.

        Args:
            signatures: member → its signature.
            quorum: t of them are needed; otherwise any number.

        Raises:
            Refusal: BAD_SIGNATURE, or MASKING_REFUSED if there are too few.
        """
        signers = {m: s for m, s in signatures.items() if 0 <= m < self.size}
        needed = self.threshold if quorum else len(signatures)
        self._check(CLOSED, closed_digest(self.sid), signers, needed)

    def _check(
        self, purpose: str, digest: bytes, signatures: Mapping[int, bytes], needed: int
    ) -> None:
        if len(signatures) < needed:
            raise Refusal(
                Code.MASKING_REFUSED,
                f"Expected {purpose!r} signed by at least {needed} members of the session that may "
                f"sign it, got {len(signatures)}.",
            )
        for member, signature in signatures.items():
            each = self.members[member]
            check_signature(each.key, purpose, digest, signature, each.advert.name)


def sessions_of(
    ready: Sequence[VerifiedAdvert], pid: bytes, group: int
) -> tuple[SessionRoster, ...]:
    """The sessions of clients of one class that are ready.

    Args:
        ready: at least one, as `verify_adverts` returns them.
        pid: of the round's try.
        group: most members of a session.
    """
    by_name = {each.advert.name: each for each in ready}
    nonces = {name: each.advert.nonce for name, each in by_name.items()}
    drawn = draw_sessions(pid, ready[0].advert.coverage, nonces, group)
    return tuple(
        SessionRoster(pid=pid, session=session, members=tuple(by_name[name] for name in names))
        for session, names in enumerate(drawn)
    )
