"""Adverts: the signed public keys with which a client says that it is ready to mask its update.

An advert is signed by the key of the client's certificate over H("ready", its fields). Peers
verify it themselves: the server only forwards it.
"""

from dataclasses import dataclass, replace
from typing import Final

from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.masking.encoding import DIGEST_BYTES, digest, frames, unframed
from fedloom.protocol.masking.keys import MemberSecrets, pair_private, self_commitment
from fedloom.protocol.masking.shamir import Random
from fedloom.protocol.masking.statements import MAX_SIGNATURE_BYTES, READY, Sign
from fedloom.protocol.trust.signed_bytes import to_sign

NONCE_BYTES: Final = 32
MAX_CHAIN_BYTES: Final = 16 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Advert:
    """A client's public part of a masking session.

    Attributes:
        pid: what it is ready for, `encoding.protocol_id`; 32 bytes.
        name: of the client, as in its certificate.
        serial: of its certificate, 40 lower-case hex digits.
        coverage: the class of what its update covers, `encoding.width_class`; empty where all
            updates cover the same.
        channel_key: X25519 public key that shares for it are encrypted to.
        pair_key: X25519 public key of its pair seed.
        self_commitment: commitment to its self seed.
        nonce: 32 random bytes for the draw of sessions.
        signature: in DER, over `digest()`, purpose `secagg.ready`.
        chain: its certificates as PEM, leaf first; empty where the receiver has them by serial.

    Raises:
        Refusal: MALFORMED, a field has another length.
    """

    pid: bytes
    name: str
    serial: str
    coverage: str
    channel_key: bytes
    pair_key: bytes
    self_commitment: bytes
    nonce: bytes
    signature: bytes = b""
    chain: bytes = b""

    def __post_init__(self) -> None:
        fixed = (self.pid, self.channel_key, self.pair_key, self.self_commitment, self.nonce)
        if {len(each) for each in fixed} != {DIGEST_BYTES}:
            raise Refusal(Code.MALFORMED, "Expected keys, commitment and nonce of 32 bytes each.")
        if not (self.name.isascii() and 1 <= len(self.name) <= 64) or len(self.serial) != 40:
            raise Refusal(Code.MALFORMED, "Expected a client's name and its certificate's serial.")
        if not self.coverage.isascii() or len(self.coverage) > 64:
            raise Refusal(Code.MALFORMED, "Expected a class of at most 64 ASCII characters.")
        if len(self.signature) > MAX_SIGNATURE_BYTES or len(self.chain) > MAX_CHAIN_BYTES:
            raise Refusal(Code.MALFORMED, "Expected a shorter signature or chain of certificates.")

    def digest(self) -> bytes:
        """What is signed, and what enters the session's id."""
        return digest("ready", *self._stated())

    def to_bytes(self) -> bytes:
        """The advert as a message."""
        return frames(*self._stated(), self.signature, self.chain)

    @classmethod
    def from_bytes(cls, raw: bytes) -> "Advert":
        """The advert of `to_bytes`.

        Raises:
            Refusal: MALFORMED.
        """
        fields = list(unframed(raw))
        if len(fields) != 10 or not all(fields[i].isascii() for i in (1, 2, 3)):
            raise Refusal(Code.MALFORMED, f"Expected an advert, got {len(raw)} other bytes.")
        return cls(
            pid=fields[0],
            name=fields[1].decode(),
            serial=fields[2].decode(),
            coverage=fields[3].decode(),
            channel_key=fields[4],
            pair_key=fields[5],
            self_commitment=fields[6],
            nonce=fields[7],
            signature=fields[8],
            chain=fields[9],
        )

    def _stated(self) -> tuple[bytes | str, ...]:
        return (
            *(self.pid, self.name, self.serial, self.coverage, self.channel_key, self.pair_key),
            *(self.self_commitment, self.nonce),
        )


def make_advert(
    secrets: MemberSecrets,
    *,
    pid: bytes,
    name: str,
    serial: str,
    coverage: str,
    nonce: bytes,
    sign: Sign,
    chain: bytes = b"",
) -> Advert:
    """Make and sign the advert of a client's secrets.

    Args:
        secrets: fresh ones.
        pid: of the round's try.
        name: of the client.
        serial: of the certificate whose key signs.
        coverage: the client's class.
        nonce: 32 random bytes.
        sign: by the certificate's key.
        chain: its certificates as PEM.
    """
    assert secrets.channel is not None
    advert = Advert(
        pid=pid,
        name=name,
        serial=serial,
        coverage=coverage,
        channel_key=secrets.channel.public_key().public_bytes_raw(),
        pair_key=pair_private(secrets.pair_seed, pid).public_key().public_bytes_raw(),
        self_commitment=self_commitment(pid, name, secrets.self_seed),
        nonce=nonce,
        chain=chain,
    )
    return replace(advert, signature=sign(to_sign(READY, advert.digest())))


def new_nonce(random: Random) -> bytes:
    """The random bytes of an advert."""
    return random(NONCE_BYTES)
