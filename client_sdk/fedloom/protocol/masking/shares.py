"""Shares of a member's seeds for its peers: encrypted, and committed to.

For each peer a dealer sends one AES-256-GCM ciphertext of both shares, and commitments to both. The
server forwards them. Later it can tell who is at fault when a revealed share does not fit.

    ciphertext = nonce, 12 bytes ‖ encrypted share of s ‖ share of b, 64 bytes ‖ tag, 16 bytes
    commitment = H("share", sid, dealer, holder, "s" or "b", share)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.masking.encoding import DIGEST_BYTES, digest
from fedloom.protocol.masking.shamir import ELEMENT_BYTES, PRIME, Random
from fedloom.protocol.masking.survivors import SeedKind

_NONCE_BYTES: Final = 12
CIPHERTEXT_BYTES: Final = _NONCE_BYTES + 2 * ELEMENT_BYTES + 16
SHARE_BYTES: Final = CIPHERTEXT_BYTES + 2 * DIGEST_BYTES


@dataclass(frozen=True, slots=True)
class SealedShare:
    """What a dealer sends for one holder.

    Attributes:
        ciphertext: `CIPHERTEXT_BYTES`; empty for the dealer itself, which keeps its own shares.
        pair_commitment: to the share of its pair seed, 32 bytes.
        self_commitment: to the share of its self seed, 32 bytes.
    """

    ciphertext: bytes
    pair_commitment: bytes
    self_commitment: bytes

    def commitment(self, kind: SeedKind) -> bytes:
        """The commitment to one of the two shares."""
        return self.pair_commitment if kind is SeedKind.PAIR else self.self_commitment

    def to_bytes(self) -> bytes:
        """The three, one after the other."""
        return self.ciphertext + self.pair_commitment + self.self_commitment

    @classmethod
    def from_bytes(cls, raw: bytes) -> "SealedShare":
        """The share of `to_bytes`.

        Raises:
            Refusal: MALFORMED, of another length.
        """
        if len(raw) not in (SHARE_BYTES, 2 * DIGEST_BYTES):
            raise Refusal(
                Code.MALFORMED, f"Expected a share of {SHARE_BYTES} bytes, got {len(raw)} bytes."
            )
        cut = len(raw) - 2 * DIGEST_BYTES
        return cls(raw[:cut], raw[cut : cut + DIGEST_BYTES], raw[cut + DIGEST_BYTES :])


@dataclass(frozen=True, slots=True)
class SharesMessage:
    """What a member sends when it knows its roster.

    Attributes:
        shares: for each member in the order of the roster, the dealer itself included.
    """

    shares: tuple[SealedShare, ...]

    def to_bytes(self) -> bytes:
        """All of them, one after the other."""
        return b"".join(share.to_bytes() for share in self.shares)

    @classmethod
    def from_bytes(cls, raw: bytes, dealer: int, size: int) -> "SharesMessage":
        """The message of `to_bytes`.

        Args:
            raw: the message.
            dealer: index of its sender.
            size: members of the roster.

        Raises:
            Refusal: MALFORMED, of another length.
        """
        lengths = [2 * DIGEST_BYTES if i == dealer else SHARE_BYTES for i in range(size)]
        if len(raw) != sum(lengths):
            raise Refusal(
                Code.MALFORMED,
                f"Expected shares for {size} members in {sum(lengths)} bytes, got {len(raw)}.",
            )
        shares, start = [], 0
        for length in lengths:
            shares.append(SealedShare.from_bytes(raw[start : start + length]))
            start += length
        return cls(tuple(shares))


def share_commitment(sid: bytes, dealer: str, holder: str, kind: SeedKind, share: bytes) -> bytes:
    """The commitment to one share of one holder."""
    return digest("share", sid, dealer, holder, kind, share)


def seal(
    key: bytes, sid: bytes, names: tuple[str, str], shares: Sequence[bytes], random: Random
) -> bytes:
    """Encrypt the shares of s and b for one holder.

    Args:
        key: `keys.channel_key` from dealer to holder; it encrypts once.
        sid: of the session.
        names: of the dealer and the holder.
        shares: of s and of b, 32 bytes each.
        random: source of the nonce.
    """
    nonce = random(_NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, b"".join(shares), _bound(sid, *names))


def unseal(
    key: bytes, sid: bytes, dealer: str, holder: str, sealed: SealedShare
) -> tuple[bytes, bytes] | None:
    """Decrypt the shares that a dealer sent; None where they or their commitments do not fit."""
    nonce, encrypted = sealed.ciphertext[:_NONCE_BYTES], sealed.ciphertext[_NONCE_BYTES:]
    if len(sealed.ciphertext) != CIPHERTEXT_BYTES:
        return None
    try:
        both = AESGCM(key).decrypt(nonce, encrypted, _bound(sid, dealer, holder))
    except InvalidTag:
        return None
    shares = both[:ELEMENT_BYTES], both[ELEMENT_BYTES:]
    fit = all(
        int.from_bytes(share, "big") < PRIME
        and share_commitment(sid, dealer, holder, kind, share) == sealed.commitment(kind)
        for kind, share in zip(SeedKind, shares, strict=True)
    )
    return shares if fit else None


def _bound(sid: bytes, dealer: str, holder: str) -> bytes:
    return b"\0".join((sid + dealer.encode(), holder.encode()))
