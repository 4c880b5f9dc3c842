"""Signatures of the server, and the clients' trust in its key.

TLS proves which machine answers; a signature proves that the holder of the federation's signing
key made the content, through any intermediary. A client learns the key once, at enrolment; later
each key signs its successor.

The signed bytes are never a bare payload, but

    "fedloom-signature-1" ‖ 0 ‖ purpose ‖ 0 ‖ payload

so that a signature for one purpose is not valid for another.

Sources: RFC 8032 (Ed25519). docs/protocol.md, "Signatures", has the bytes.
Invariants: `Verifier.check` returns only if a trusted key, or one that a trusted key endorsed,
signed exactly this purpose and payload; a replaced key is no longer trusted once a signature by its
successor was seen.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from google.protobuf.message import DecodeError

from fedloom.protocol.errors import Code, IntegrityError, Refusal, printable
from fedloom.protocol.trust.signed_bytes import to_sign
from fedloom.protocol.v1 import fleet_pb2, signing_pb2

KEY_BYTES = 32
SIGNATURE_BYTES = 64
NONCE_BYTES = 32
MAX_CHAIN = 64
"""Most endorsements in a signature: a client that missed more key changes enrols again."""

TASK = "task"
KEY = "key"
PROMOTED = "promoted"
MODEL = "model"


def fingerprint(key: bytes) -> str:
    """A public key for visual comparison: hex digits in groups of eight.

    >>> fingerprint(bytes(range(32)))[:17]
    '00010203 04050607'
    """
    text = key.hex()
    return " ".join(text[i : i + 8] for i in range(0, len(text), 8))


class Signer:
    """Signs for a federation.

    Args:
        private: the key's 32 secret bytes.
        chain: endorsements from earlier keys to this one, oldest first.

    Attributes:
        public: the key's 32 public bytes.
    """

    def __init__(self, private: bytes, chain: Iterable[signing_pb2.Endorsement] = ()) -> None:
        try:
            self._key = Ed25519PrivateKey.from_private_bytes(private)
        except ValueError as error:
            raise IntegrityError(f"Expected a signing key of {KEY_BYTES} bytes: {error}") from None
        self._chain = tuple(chain)[-MAX_CHAIN:]
        self.public = self._key.public_key().public_bytes_raw()

    @classmethod
    def new(cls) -> "Signer":
        """A new key."""
        return cls(Ed25519PrivateKey.generate().private_bytes_raw())

    @property
    def private(self) -> bytes:
        """The key's secret bytes; store them with `private_files.write_private`."""
        return self._key.private_bytes_raw()

    @property
    def chain(self) -> Sequence[signing_pb2.Endorsement]:
        """Endorsements from earlier keys to this one, oldest first."""
        return self._chain

    def sign(self, purpose: str, payload: bytes) -> bytes:
        """A serialised `Signature` by this key, with its chain."""
        return self.signature(purpose, payload).SerializeToString(deterministic=True)

    def signature(self, purpose: str, payload: bytes) -> signing_pb2.Signature:
        """As `sign`, as a message."""
        return signing_pb2.Signature(
            key=self.public, signature=self._key.sign(to_sign(purpose, payload)), chain=self._chain
        )

    def successor(self, private: bytes | None = None) -> "Signer":
        """A new key, endorsed by this one.

        Args:
            private: its secret bytes; default: random.
        """
        new = Signer(private) if private is not None else Signer.new()
        word = signing_pb2.Endorsement(
            by=self.public, key=new.public, signature=self._key.sign(to_sign(KEY, new.public))
        )
        return Signer(new.private, (*self._chain, word))


class Verifier:
    """Checks signatures of a server.

    Attributes:
        keys: trusted now; changes when a signature by a newer key was seen.
    """

    def __init__(self, keys: Iterable[bytes]) -> None:
        self.keys: frozenset[bytes] = frozenset(keys)

    def check(self, purpose: str, payload: bytes, signature: bytes | signing_pb2.Signature) -> None:
        """Check that the federation's key signed this payload for this purpose.

        Raises:
            Refusal: BAD_SIGNATURE.
        """
        parsed = _parsed(signature)
        if len(parsed.chain) > MAX_CHAIN:
            raise _bad(f"Expected at most {MAX_CHAIN} endorsements, got {len(parsed.chain)}.")
        trusted = parsed.key in self.keys
        if not trusted and parsed.key not in self.endorsed(parsed.chain):
            raise _bad(
                "Expected a signature by the federation's key, got one by another that no key "
                "known here vouches for. If the server has lost its key, or this device's "
                "signing.pub is of another federation, enrol again."
            )
        if not _signed(parsed.key, to_sign(purpose, payload), parsed.signature):
            raise _bad(
                f"Expected what the federation's key signed as {purpose!r}, got other bytes: it "
                "was made or changed by another party."
            )
        if not trusted:
            self.keys = frozenset({parsed.key})

    def follow(self, key: bytes, chain: Iterable[signing_pb2.Endorsement]) -> bool:
        """Trust only this key, if it is trusted already or endorsed; False if it is neither."""
        if key not in self.keys | self.endorsed(list(chain)[-MAX_CHAIN:]):
            return False
        self.keys = frozenset({key})
        return True

    def endorsed(self, chain: Iterable[signing_pb2.Endorsement]) -> frozenset[bytes]:
        """Keys that a chain endorses, starting from trusted ones."""
        reached = set(self.keys)
        for word in chain:
            if word.by in reached and _signed(word.by, to_sign(KEY, word.key), word.signature):
                reached.add(word.key)
        return frozenset(reached - self.keys)


def _parsed(signature: bytes | signing_pb2.Signature) -> signing_pb2.Signature:
    if isinstance(signature, signing_pb2.Signature):
        return signature
    try:
        return signing_pb2.Signature.FromString(signature)
    except DecodeError:
        raise _bad(f"Expected a signature, got {len(signature)} other bytes.") from None


def _signed(key: bytes, data: bytes, signature: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


def _bad(message: str) -> Refusal:
    return Refusal(Code.BAD_SIGNATURE, message)


# ---- offers -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Addressee:
    """The addressee of an offer.

    Attributes:
        federation: as in the client's certificate.
        client: likewise.
        nonce: of the connection's hello, `NONCE_BYTES`; empty for a client of version 2.
    """

    federation: str
    client: str
    nonce: bytes


@dataclass(frozen=True, slots=True)
class VerifiedOffer:
    """An offer whose signature is valid.

    Attributes:
        task: of the offer.
        issued_us: when the server signed it, by the server's clock; microseconds since the epoch.
    """

    task: fleet_pb2.Task
    issued_us: int


def signed_offer(
    signer: Signer, addressee: Addressee, task: fleet_pb2.Task, issued_us: int
) -> fleet_pb2.SignedOffer:
    """A signed offer: its settings cannot be changed, and it is valid for one client.

    Args:
        signer: the federation's.
        addressee: of the offer.
        task: of the offer.
        issued_us: time, rising from offer to offer; microseconds since the epoch.
    """
    statement = fleet_pb2.OfferStatement(
        federation=addressee.federation,
        client=addressee.client,
        task=task.SerializeToString(deterministic=True),
        issued_us=issued_us,
        nonce=addressee.nonce,
    ).SerializeToString(deterministic=True)
    return fleet_pb2.SignedOffer(
        statement=statement, signature=signer.signature(TASK, statement), task=task.key
    )


def open_offer(
    verifier: Verifier, addressee: Addressee, offer: fleet_pb2.SignedOffer
) -> VerifiedOffer:
    """Verify an offer, then parse its task.

    Raises:
        Refusal: BAD_SIGNATURE; WRONG_IDENTITY if it is for another client or federation;
            STALE_ROUND if it is for another connection; or MALFORMED.
    """
    verifier.check(TASK, offer.statement, offer.signature)
    try:
        statement = fleet_pb2.OfferStatement.FromString(offer.statement)
        task = fleet_pb2.Task.FromString(statement.task)
    except DecodeError:
        raise Refusal(
            Code.MALFORMED, f"Expected a signed task, got {len(offer.statement)} other bytes."
        ) from None
    meant = Addressee(statement.federation, statement.client, statement.nonce)
    if replace(meant, nonce=addressee.nonce) != addressee:
        raise Refusal(
            Code.WRONG_IDENTITY,
            f"Expected an offer for {addressee.client!r} of {addressee.federation!r}, got one "
            f"that was signed for {meant.client[:80]!r} of {meant.federation[:80]!r}.",
        )
    if meant.nonce != addressee.nonce:
        raise Refusal(
            Code.STALE_ROUND,
            f"Expected an offer that was signed for this connection, got an old offer of round "
            f"{task.key.round} of {printable(task.key.run, 80)}, signed for another one.",
        )
    if offer.task != task.key:
        raise Refusal(Code.MALFORMED, "Expected an offer that names the task in it, got another.")
    return VerifiedOffer(task, statement.issued_us)
