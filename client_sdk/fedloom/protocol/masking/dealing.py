"""What a member computes with its secrets: shares for its peers, peers' shares, and its masks."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fedloom.protocol.masking.keys import (
    MemberSecrets,
    channel_key,
    pair_mask_key,
    pair_private,
    self_mask_key,
)
from fedloom.protocol.masking.roster import SessionRoster
from fedloom.protocol.masking.shamir import ELEMENT_BYTES, Random, deal
from fedloom.protocol.masking.shares import (
    SealedShare,
    SharesMessage,
    seal,
    share_commitment,
    unseal,
)
from fedloom.protocol.masking.streams import MaskStream
from fedloom.protocol.masking.survivors import SeedKind


@dataclass(frozen=True, slots=True)
class Dealt:
    """What a member has dealt.

    Attributes:
        message: for the server, which forwards it.
        own: its own shares of its pair seed and its self seed.
        channels: peer → key of the shares that it sends.
    """

    message: SharesMessage
    own: tuple[bytes, bytes] = field(repr=False)
    channels: Mapping[int, bytes] = field(repr=False)


def deal_shares(
    roster: SessionRoster, dealer: int, secrets: MemberSecrets, random: Random
) -> Dealt:
    """Share a member's seeds with its session.

    Args:
        roster: of the session.
        dealer: index of the member.
        secrets: of the member.
        random: source of coefficients, then of nonces.
    """
    channel = secrets.channel
    assert channel is not None
    sid, names = roster.sid, roster.names
    dealt = [
        deal(int.from_bytes(seed, "big"), roster.threshold, roster.size, random)
        for seed in (secrets.pair_seed, secrets.self_seed)
    ]
    shares = [(_bytes(s), _bytes(b)) for s, b in zip(*dealt, strict=True)]
    sealed, channels = [], {}
    for holder, both in enumerate(shares):
        ciphertext = b""
        if holder != dealer:
            peer = roster.advert(holder).channel_key
            key = channel_key(channel, peer, sid, names[dealer], names[holder])
            ciphertext = seal(key, sid, (names[dealer], names[holder]), both, random)
            channels[holder] = channel_key(channel, peer, sid, names[holder], names[dealer])
        commitments = (
            share_commitment(sid, names[dealer], names[holder], kind, share)
            for kind, share in zip(SeedKind, both, strict=True)
        )
        sealed.append(SealedShare(ciphertext, *commitments))
    return Dealt(SharesMessage(tuple(sealed)), shares[dealer], channels)


def open_shares(
    roster: SessionRoster, holder: int, dealt: Dealt, sealed: Mapping[int, SealedShare]
) -> dict[int, tuple[bytearray, bytearray]]:
    """Decrypt the shares for a member; its own are among them, and those that do not fit are not.

    Args:
        roster: of the session.
        holder: index of the member.
        dealt: what it dealt itself.
        sealed: peer → what it sent.
    """
    found = {holder: dealt.own}
    for dealer, share in sealed.items():
        names = (roster.names[dealer], roster.names[holder])
        both = unseal(dealt.channels[dealer], roster.sid, *names, share)
        if both is not None:
            found[dealer] = both
    return {dealer: (bytearray(s), bytearray(b)) for dealer, (s, b) in found.items()}


def mask_streams(
    roster: SessionRoster, member: int, secrets: MemberSecrets, shared: Iterable[int]
) -> tuple[MaskStream, ...]:
    """The masks of a member's body: its own, and one with each other member of U2.

    Of a pair, the member whose name sorts first adds the mask, and the other subtracts it.
    """
    private = pair_private(secrets.pair_seed, roster.pid)
    streams = [MaskStream(self_mask_key(secrets.self_seed, roster.sid), 1)]
    for peer in sorted(frozenset(shared) - {member}):
        names = (roster.names[member], roster.names[peer])
        key = pair_mask_key(private, roster.advert(peer).pair_key, roster.sid, names)
        streams.append(MaskStream(key, 1 if member < peer else -1))
    return tuple(streams)


def _bytes(share: int) -> bytes:
    return share.to_bytes(ELEMENT_BYTES, "big")
