"""A device's part of one masking session: a state machine without network, files or clock.

    READY ─join→ SHARED ─receive→ RECEIVED ─mask→ MASKED ─agree→ AGREED ─reveal→ REVEALED
      any phase ─refusal, end, close→ ENDED

The server calls the phases, and the first roster, U2 and U3 count. The same message again gets the
same answer; a second one is refused. Every refusal is a `Refusal` that says why, wipes all secrets
and ends the session. A member of a session that ended masks its update again only under fresh keys,
and only if no byte of the masked body has left, or under the closing proof.

Secrets and shares live in memory only: a process that restarts has dropped out of its sessions. The
caller keeps time, and ends a session that takes too long.

References:
    Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning (2017),
    figure 4.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from os import urandom
from typing import Any, Final, NoReturn, SupportsIndex, TypeVar

from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.masking.advert_checks import Identify
from fedloom.protocol.masking.adverts import Advert, make_advert, new_nonce
from fedloom.protocol.masking.body import BodyLayout, Bytes
from fedloom.protocol.masking.dealing import Dealt, deal_shares, mask_streams, open_shares
from fedloom.protocol.masking.encoding import digest
from fedloom.protocol.masking.keys import MemberSecrets, wipe
from fedloom.protocol.masking.roster import SessionRoster
from fedloom.protocol.masking.roster_checks import checked_roster
from fedloom.protocol.masking.shamir import Random
from fedloom.protocol.masking.shares import SealedShare, SharesMessage
from fedloom.protocol.masking.statements import AGREE, CLOSED, Sign, closed_digest
from fedloom.protocol.masking.streams import MaskStream, apply_streams
from fedloom.protocol.masking.survivors import RevealMessage, SeedKind, Survivors
from fedloom.protocol.masking.terms import MaskingFloors, RoundTerms
from fedloom.protocol.trust.signed_bytes import to_sign

T = TypeVar("T")


class MemberPhase(StrEnum):
    """How far a member is."""

    READY = "ready"
    SHARED = "shared"
    RECEIVED = "received"
    MASKED = "masked"
    AGREED = "agreed"
    REVEALED = "revealed"
    ENDED = "ended"


_STEPS: Final = {
    "roster": (MemberPhase.READY, MemberPhase.SHARED),
    "U2": (MemberPhase.SHARED, MemberPhase.RECEIVED),
    "U3": (MemberPhase.MASKED, MemberPhase.AGREED),
    "quorum": (MemberPhase.AGREED, MemberPhase.REVEALED),
}
"""Message of the server → the phase in which it is due, and the one after it."""


class Member:
    """One client in one try.

    Args:
        terms: of the try.
        name: of the client, as in its certificate.
        serial: of its certificate.
        sign: by that certificate's key, until the session ends.
        coverage: its class; empty where all updates cover the same.
        floors: of the device's owner.
        last_attempt: the last for which this client was ready in this round; 0: none.
        body_left: a byte of this update's masked body has left the device, and no closing proof
            was seen.
        chain: its certificates as PEM.
        random: source of all random bytes.

    Attributes:
        advert: what it sends first.
        phase: how far it is.
        reason: why the session ended; empty before.
        roster: its session's, once `join` has accepted it; None before.

    Raises:
        Refusal: MASKING_REFUSED, this client must not be ready again.
    """

    def __init__(
        self,
        terms: RoundTerms,
        *,
        name: str,
        serial: str,
        sign: Sign,
        coverage: str = "",
        floors: MaskingFloors | None = None,
        last_attempt: int = 0,
        body_left: bool = False,
        chain: bytes = b"",
        random: Random = urandom,
    ) -> None:
        if body_left:
            raise _refused(
                "Expected an update of which nothing has left, got one whose masked body was sent "
                "before: it is not masked again without proof that its session can never reveal."
            )
        if terms.attempt <= last_attempt:
            raise _refused(
                f"Expected a new try at masking this round, got try {terms.attempt} again after "
                f"try {last_attempt}."
            )
        self._terms, self._floors = terms, floors or MaskingFloors()
        self._sign, self._random = sign, random
        self._secrets = MemberSecrets(random)
        self.advert: Advert = make_advert(
            self._secrets,
            pid=terms.pid,
            name=name,
            serial=serial,
            coverage=coverage,
            nonce=new_nonce(random),
            sign=sign,
            chain=chain,
        )
        self.phase = MemberPhase.READY
        self.reason = ""
        self.roster: SessionRoster | None = None
        self._dealt: Dealt | None = None
        self._streams: tuple[MaskStream, ...] = ()
        self._shares: dict[int, tuple[bytearray, bytearray]] = {}
        self._shared: frozenset[int] = frozenset()
        self._survivors: Survivors | None = None
        self._agreed = False
        self._closed = b""
        self._answers: dict[str, _Answer] = {}

    # ---- phases ---------------------------------------------------------------------------------

    def join(self, ready: Sequence[Advert], identify: Identify) -> SharesMessage:
        """Accept the list of ready clients, and share secrets with the members of the session.

        Args:
            ready: the adverts of all ready clients of this class; sessions are drawn from it.
            identify: verifies a client's chain of certificates.

        Returns:
            Shares for every member.

        Raises:
            Refusal: the list is not acceptable; the session has ended.
        """
        asked = digest("list", *sorted(advert.digest() for advert in ready))
        return self._once("roster", asked, lambda: self._join(ready, identify))

    def receive(self, shared: frozenset[int], shares: Mapping[int, SealedShare]) -> frozenset[int]:
        """Accept U2, and the shares of its members for this one.

        Args:
            shared: U2, indices in the roster.
            shares: each other member of U2 → what it sent for this one.

        Returns:
            The members whose shares do not fit: complaints for the server. They are masked against
            all the same.

        Raises:
            Refusal: U2 is not acceptable; the session has ended.
        """
        sent = (field for i in sorted(shares) for field in (i, shares[i].to_bytes()))
        asked = digest("U2", *sorted(shared), "shares", *sent)
        return self._once("U2", asked, lambda: self._receive(shared, shares))

    def mask(self, body: Bytes, layout: BodyLayout, *, threads: int = 1) -> None:
        """Mask the body of the update in place, noise included; once, for the keys serve one body.

        Before its first byte leaves the device, sync the marker that it has left, and delete the
        update that is not masked.

        Args:
            body: `body.write_body`.
            layout: of the body.
            threads: that work on it.

        Raises:
            ValueError: not after `receive`, or a second time.
            Refusal: MASKING_REFUSED, the session has ended; or the body is not of this layout.
        """
        self._open()
        if self.phase is not MemberPhase.RECEIVED:
            raise ValueError(f"Expected one body, after the shares, got one when {self.phase}.")
        apply_streams(body, layout, self._streams, threads=threads)
        self._streams = ()
        self.phase = MemberPhase.MASKED

    def agree(self, masked: frozenset[int]) -> bytes:
        """Accept U3, and sign it; once for a session.

        Args:
            masked: U3, indices in the roster.

        Returns:
            A signature over U2 and U3.

        Raises:
            Refusal: U3 is not acceptable; the session has ended.
        """
        return self._once("U3", digest("U3", *sorted(masked)), lambda: self._agree(masked))

    def reveal(self, signatures: Mapping[int, bytes]) -> RevealMessage:
        """Reveal one share of each member of U2; the others are wiped.

        Args:
            signatures: member of U3 → its signature over U2 and U3; at least t.

        Raises:
            Refusal: there are too few, or a signature is wrong; the session has ended.
        """
        return self._once("quorum", b"", lambda: self._reveal(signatures))

    def close(self) -> bytes:
        """Wipe everything, and sign that this member will never reveal anything of the session.

        Raises:
            Refusal: MASKING_REFUSED, it has signed survivors, or knows no session.
        """
        if self._closed:
            return self._closed
        if self._agreed:
            raise _refused(
                "Expected to close a session before this member signed its survivors, got the "
                "request after that: it signs one of the two."
            )
        if self.roster is None:
            raise _refused("Expected to close a session, got the request before its roster.")
        self.end("The session was closed.")
        self._closed = self._sign(to_sign(CLOSED, closed_digest(self.roster.sid)))
        return self._closed

    def check_closing_proof(self, signatures: Mapping[int, bytes]) -> None:
        """Check that the session can never reveal: only then may its update be masked again.

        Args:
            signatures: member → its signature of `close`; at least t.

        Raises:
            Refusal: it is no proof.
        """
        if self.roster is None:
            raise _refused("Expected a proof for a session, got it before the roster.")
        self.roster.check_closed(signatures)

    def end(self, reason: str) -> None:
        """End the session here, and wipe all secrets; the first reason stays."""
        self._secrets.wipe()
        self._wipe_shares()
        self._dealt, self._streams = None, ()
        self._answers.clear()
        if self.phase is not MemberPhase.ENDED:
            self.phase, self.reason = MemberPhase.ENDED, reason

    # ---- steps ----------------------------------------------------------------------------------

    def _join(self, ready: Sequence[Advert], identify: Identify) -> SharesMessage:
        self.roster = checked_roster(ready, self.advert, self._terms, self._floors, identify)
        self._dealt = deal_shares(self.roster, self._index, self._secrets, self._random)
        return self._dealt.message

    def _receive(self, shared: frozenset[int], shares: Mapping[int, SealedShare]) -> frozenset[int]:
        roster = self._known
        if self._index not in shared or not shared <= frozenset(range(roster.size)):
            raise _refused("Expected a set of sharing members with this one in it, got another.")
        self._check_size("U2", shared)
        if frozenset(shares) != shared - {self._index}:
            raise _refused("Expected the shares of exactly the other members of U2, got others.")
        assert self._dealt is not None
        self._shares = open_shares(roster, self._index, self._dealt, shares)
        self._streams = mask_streams(roster, self._index, self._secrets, shared)
        self._shared, self._dealt = shared, None
        self._secrets.wipe()
        return shared - frozenset(self._shares)

    def _agree(self, masked: frozenset[int]) -> bytes:
        survivors = Survivors(shared=self._shared, masked=masked)
        if self._index not in masked:
            raise _refused("Expected survivors with this member among them, got others.")
        self._check_size("U3", masked)
        self._survivors, self._agreed = survivors, True
        return self._sign(to_sign(AGREE, self._known.agreement(survivors)))

    def _reveal(self, signatures: Mapping[int, bytes]) -> RevealMessage:
        survivors = self._survivors
        assert survivors is not None
        self._known.check_agreement(survivors, signatures)
        kinds = list(SeedKind)
        revealed = RevealMessage(
            {i: bytes(both[kinds.index(survivors.kind(i))]) for i, both in self._shares.items()}
        )
        self._wipe_shares()
        return revealed

    # ---- common ---------------------------------------------------------------------------------

    @property
    def _known(self) -> SessionRoster:
        assert self.roster is not None
        return self.roster

    @property
    def _index(self) -> int:
        return self._known.names.index(self.advert.name)

    def _check_size(self, which: str, members: frozenset[int]) -> None:
        if len(members) < self._known.threshold:
            raise _refused(
                f"Expected at least {self._known.threshold} of {self._known.size} members in "
                f"{which}, got {len(members)}: masks of fewer could be taken off."
            )

    def _once(self, step: str, asked: bytes, work: Callable[[], T]) -> T:
        """Answer a message of the server once, and its repetitions alike."""
        self._open()
        try:
            answer = self._answered(step, asked)
            if answer is None:
                answer = _Answer(asked, work())
                self.phase = _STEPS[step][1]
                self._answers[step] = answer
        except Exception as error:
            self.end(str(error))
            raise
        value: T = answer.value
        return value

    def _answered(self, step: str, asked: bytes) -> "_Answer | None":
        before = self._answers.get(step)
        if before is not None and before.asked != asked:
            raise _refused(f"Expected one {step} for a session, got a second, other one.")
        if before is None and self.phase is not _STEPS[step][0]:
            raise _refused(f"Expected the {step} when {_STEPS[step][0]}, got it when {self.phase}.")
        return before

    def _open(self) -> None:
        if self.phase is MemberPhase.ENDED:
            raise _refused(f"Expected nothing more for a session that ended: {self.reason}")

    def _wipe_shares(self) -> None:
        for both in self._shares.values():
            for share in both:
                wipe(share)
        self._shares = {}

    def __repr__(self) -> str:
        return f"Member({self.advert.name!r}, {self.phase})"

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError("A member of a masking session lives in memory only: it has no copy.")


@dataclass(frozen=True, slots=True)
class _Answer:
    """What was asked, and what was answered to it."""

    asked: bytes
    value: Any = field(repr=False)


def _refused(message: str) -> Refusal:
    return Refusal(Code.MASKING_REFUSED, message)
