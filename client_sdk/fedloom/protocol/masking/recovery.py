"""What the server computes from revealed shares: seeds, who is at fault, the masks that are left.

Functions of stored messages alone, so they give the same after a restart.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fedloom.protocol.masking.keys import (
    pair_mask_key,
    pair_private,
    self_commitment,
    self_mask_key,
)
from fedloom.protocol.masking.roster import SessionRoster
from fedloom.protocol.masking.shamir import ELEMENT_BYTES, combine
from fedloom.protocol.masking.shares import SharesMessage, share_commitment
from fedloom.protocol.masking.streams import MaskStream
from fedloom.protocol.masking.survivors import RevealMessage, SeedKind, Survivors


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What revealed shares give.

    Attributes:
        seeds: member of U2 → its seed, b of a survivor and s of another one.
        short: members of which fewer than t usable shares were revealed.
        false_revealers: members that revealed a share which does not fit its commitment, without a
            complaint about it; nothing of theirs was used.
        false_dealers: members whose shares fit and give a secret other than the one they announced.
    """

    seeds: Mapping[int, bytearray] = field(repr=False)
    short: frozenset[int]
    false_revealers: frozenset[int]
    false_dealers: frozenset[int]

    @property
    def complete(self) -> bool:
        """Whether all masks can be taken off."""
        return not self.short and not self.false_dealers


def recover(
    roster: SessionRoster,
    survivors: Survivors,
    dealt: Mapping[int, SharesMessage],
    reveals: Mapping[int, RevealMessage],
    complaints: Mapping[int, Iterable[int]],
) -> Recovery:
    """Rebuild one seed of each member of U2.

    The seeds are the caller's to wipe.

    Args:
        roster: of the session.
        survivors: U2 and U3.
        dealt: member of U2 → the shares that it sent.
        reveals: member of U3 → what it revealed.
        complaints: member → members whose shares did not fit, as `Member.receive` returned them.
    """
    usable = {i: reveals[i] for i in sorted(survivors.masked & frozenset(reveals))}
    unfit = {i: _unfit(roster, survivors, dealt, i, each) for i, each in usable.items()}
    false_revealers = frozenset(i for i in usable if unfit[i] - frozenset(complaints.get(i, ())))
    seeds: dict[int, bytearray] = {}
    short, false_dealers = set(), set()
    for member in survivors.shared:
        shares = {
            i: int.from_bytes(each.shares[member], "big")
            for i, each in usable.items()
            if i not in false_revealers and member in each.shares and member not in unfit[i]
        }
        if len(shares) < roster.threshold:
            short.add(member)
            continue
        rebuilt = combine(dict(list(shares.items())[: roster.threshold]))
        seed = bytearray(rebuilt.to_bytes(ELEMENT_BYTES, "big"))
        if _announced(roster, member, survivors.kind(member), seed):
            seeds[member] = seed
        else:
            false_dealers.add(member)
    return Recovery(
        seeds=seeds,
        short=frozenset(short),
        false_revealers=false_revealers,
        false_dealers=frozenset(false_dealers),
    )


def misfits(
    roster: SessionRoster,
    survivors: Survivors,
    dealt: Mapping[int, SharesMessage],
    revealer: int,
    reveal: RevealMessage,
    *,
    complaint: Iterable[int] = (),
) -> frozenset[int]:
    """The dealers whose shares a member reveals falsely: it is at fault.

    Args:
        roster: of the session.
        survivors: U2 and U3.
        dealt: member of U2 → the shares that it sent.
        revealer: the member.
        reveal: what it revealed.
        complaint: members whose shares did not fit when it got them.
    """
    return _unfit(roster, survivors, dealt, revealer, reveal) - frozenset(complaint)


def _unfit(
    roster: SessionRoster,
    survivors: Survivors,
    dealt: Mapping[int, SharesMessage],
    revealer: int,
    reveal: RevealMessage,
) -> frozenset[int]:
    """The members of U2 whose revealed shares are not the ones they committed to."""
    names, sid = roster.names, roster.sid
    return frozenset(
        dealer
        for dealer, share in reveal.shares.items()
        for kind in (survivors.kind(dealer),)
        if share_commitment(sid, names[dealer], names[revealer], kind, share)
        != dealt[dealer].shares[revealer].commitment(kind)
    )


def _announced(roster: SessionRoster, member: int, kind: SeedKind, seed: bytearray) -> bool:
    """Whether a seed is the one of a member's advert."""
    advert = roster.advert(member)
    if kind is SeedKind.SELF:
        return self_commitment(roster.pid, advert.name, seed) == advert.self_commitment
    return pair_private(seed, roster.pid).public_key().public_bytes_raw() == advert.pair_key


def leftover_masks(
    roster: SessionRoster, survivors: Survivors, seeds: Mapping[int, bytes | bytearray]
) -> list[MaskStream]:
    """The masks to apply to the sum of U3's bodies, so that the plain sum is left.

    Masks between two survivors cancel. Left are every survivor's own, and those with the members of
    U2 whose bodies are missing.

    Args:
        roster: of the session.
        survivors: U2 and U3.
        seeds: `Recovery.seeds` of a complete recovery.
    """
    sid, names = roster.sid, roster.names
    streams = [MaskStream(self_mask_key(seeds[i], sid), -1) for i in sorted(survivors.masked)]
    for gone in sorted(survivors.missing):
        private = pair_private(seeds[gone], roster.pid)
        for i in sorted(survivors.masked):
            key = pair_mask_key(private, roster.advert(i).pair_key, sid, (names[i], names[gone]))
            streams.append(MaskStream(key, -1 if i < gone else 1))
    return streams
