"""A member's secrets for one session, and the keys that follow from them.

    channel key pair c     encrypts shares between two members
    pair seed s            its X25519 key pair gives a mask key with every other member
    self seed b            gives the mask key of the member itself

Only one of s and b is ever rebuilt: s of a member whose update is missing, b of one whose update is
in the sum. Mask keys and channel keys have the session's id and both members' names in them: views
of a session that differ share no key, and a copied public key gives another mask.

Secrets live in memory only. They cannot be pickled or copied, and `wipe` overwrites the seeds. That
is a precaution and no guarantee: Python may have copied bytes, and OpenSSL frees its keys itself.

References:
    RFC 7748 (X25519), RFC 5869 (HKDF).
"""

from os import urandom
from typing import Final, NoReturn, SupportsIndex

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.masking.encoding import PROTOCOL, digest
from fedloom.protocol.masking.shamir import ELEMENT_BYTES, Random, random_element

KEY_BYTES: Final = 32
_FIELD: Final = 2**255 - 19
_SMALL_ORDER: Final = frozenset(
    {
        0,
        1,
        _FIELD - 1,
        0x00B8495F16056286FDB1329CEB8D09DA6AC49FF1FAE35616AEB8413B7C7AEBE0,
        0x57119FD0DD4E22D8868E1C58C45C44045BEF839C55B1D0B1248C50A3BC959C5F,
    }
)
"""The coordinates u of points whose order divides 8: any key gives zero with them."""


class MemberSecrets:
    """Fresh secrets of one member for one try.

    Args:
        random: source of random bytes.

    Attributes:
        channel: the private channel key, c.
        pair_seed: s, 32 bytes.
        self_seed: b, 32 bytes.
    """

    __slots__ = ("channel", "pair_seed", "self_seed")

    def __init__(self, random: Random = urandom) -> None:
        self.channel: X25519PrivateKey | None = X25519PrivateKey.from_private_bytes(
            random(KEY_BYTES)
        )
        self.pair_seed = bytearray(random_element(random).to_bytes(ELEMENT_BYTES, "big"))
        self.self_seed = bytearray(random_element(random).to_bytes(ELEMENT_BYTES, "big"))

    def wipe(self) -> None:
        """Overwrite the seeds and drop the private key."""
        self.channel = None
        wipe(self.pair_seed)
        wipe(self.self_seed)

    def __repr__(self) -> str:
        return "MemberSecrets(…)"

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError("Secrets of a masking session live in memory only: they have no copy.")


def wipe(secret: bytearray) -> None:
    """Overwrite a secret with zeros."""
    secret[:] = bytes(len(secret))


def check_public_key(key: bytes, who: str) -> None:
    """Check the form of an X25519 public key.

    A key has one form only (RFC 7748 accepts several), so that equal keys have equal bytes.

    Raises:
        Refusal: MALFORMED, not 32 bytes below 2^255 − 19, or a point of small order.
    """
    u = int.from_bytes(key, "little")
    if len(key) != KEY_BYTES or u >= _FIELD or u in _SMALL_ORDER:
        raise Refusal(
            Code.MALFORMED,
            f"Expected an X25519 public key of {who}: {KEY_BYTES} bytes below 2^255 − 19 that are "
            f"no point of small order; got {key.hex()[:80]}.",
        )


def pair_private(pair_seed: bytes | bytearray, pid: bytes) -> X25519PrivateKey:
    """The X25519 key of a pair seed s."""
    return X25519PrivateKey.from_private_bytes(_derived(bytes(pair_seed), pid, "x25519"))


def self_commitment(pid: bytes, name: str, self_seed: bytes | bytearray) -> bytes:
    """The commitment to a self seed b in an advert."""
    return digest("b", pid, name, bytes(self_seed))


def pair_mask_key(
    private: X25519PrivateKey, peer: bytes, sid: bytes, names: tuple[str, str]
) -> bytes:
    """The key of the mask that two members share.

    Args:
        private: of one of them, `pair_private`.
        peer: the other's public key.
        sid: of the session.
        names: both, in any order.
    """
    first, second = sorted(names)
    return _derived(_exchanged(private, peer), sid, "pair", first, second)


def self_mask_key(self_seed: bytes | bytearray, sid: bytes) -> bytes:
    """The key of a member's own mask."""
    return _derived(bytes(self_seed), sid, "self")


def channel_key(
    private: X25519PrivateKey, peer: bytes, sid: bytes, dealer: str, holder: str
) -> bytes:
    """The AES-256-GCM key of the shares that `dealer` gives to `holder`.

    Args:
        private: the channel key of one of them.
        peer: the other's public channel key.
        sid: of the session.
        dealer: the name of the member whose secrets are shared.
        holder: the name of the member that receives the shares.
    """
    return _derived(_exchanged(private, peer), sid, "channel", dealer, holder)


def _derived(secret: bytes, salt: bytes, *info: str) -> bytes:
    purpose = f"{PROTOCOL} " + "\0".join(info)
    return HKDF(SHA256(), KEY_BYTES, salt, purpose.encode()).derive(secret)


def _exchanged(private: X25519PrivateKey, peer: bytes) -> bytes:
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(peer))
    except ValueError:
        raise Refusal(
            Code.MALFORMED, f"Expected an X25519 public key, got {peer.hex()[:80]}."
        ) from None
