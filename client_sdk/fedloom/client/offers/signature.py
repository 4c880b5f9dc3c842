"""Signatures of the server: a client accepts only offers that the federation's key signed for it.

Invariants: the key changes only to one that the current key endorses. A client whose enrolment is
older than signatures learns the key once, with a renewed certificate. An offer is accepted once, on
the connection that it was signed for: no clock and no record of earlier offers is needed.
"""

import logging
import secrets
from dataclasses import replace

from fedloom.client.state.store import ClientStore
from fedloom.protocol.errors import Code, Refusal, printable
from fedloom.protocol.trust.identity import Peer
from fedloom.protocol.trust.signing import (
    KEY_BYTES,
    NONCE_BYTES,
    Addressee,
    Verifier,
    fingerprint,
    open_offer,
)
from fedloom.protocol.v1 import enrolment_pb2, fleet_pb2, signing_pb2

log = logging.getLogger(__name__)


class Trust:
    """A client's view of the federation's signing key.

    Attributes:
        verifier: of the server's signatures.
    """

    def __init__(self, store: ClientStore, me: Peer) -> None:
        self._store = store
        self._me = Addressee(me.federation, me.client, b"")
        self._newest_us = 0
        self.verifier = Verifier(store.trusted())

    @property
    def federation(self) -> str:
        """The federation of this client's certificate."""
        return self._me.federation

    @property
    def knows_key(self) -> bool:
        """Whether the federation's key is known."""
        return bool(self.verifier.keys)

    def begin(self) -> bytes:
        """Begin a connection: offers of earlier ones are invalid. Returns its nonce."""
        self._me = replace(self._me, nonce=secrets.token_bytes(NONCE_BYTES))
        self._newest_us = 0
        return self._me.nonce

    def open(self, offer: fleet_pb2.SignedOffer) -> fleet_pb2.Task:
        """Verify an offer and return its task; stores a key that the known one endorsed.

        Raises:
            Refusal: it is not signed, not for this client, or not newer than the last one.
        """
        before = self.verifier.keys
        opened = open_offer(self.verifier, self._me, offer)
        self._keep(before)
        if opened.issued_us <= self._newest_us:
            key = opened.task.key
            raise Refusal(
                Code.STALE_ROUND,
                f"Expected an offer that was signed after the last one, got an old offer of round "
                f"{key.round} of {printable(key.run, 80)}.",
            )
        self._newest_us = opened.issued_us
        return opened.task

    def check(self, purpose: str, payload: bytes, signature: signing_pb2.Signature) -> None:
        """Check the signature of another statement; stores a key that the known one endorsed.

        Raises:
            Refusal: BAD_SIGNATURE.
        """
        before = self.verifier.keys
        self.verifier.check(purpose, payload, signature)
        self._keep(before)

    def learn(self, issued: enrolment_pb2.IssuedCertificate) -> None:
        """Accept the key that came with a renewed certificate.

        Raises:
            Refusal: BAD_SIGNATURE if it is a new key that the known one does not endorse.
        """
        before, key = self.verifier.keys, issued.signing_key
        if before:
            if not self.verifier.follow(key, issued.signing_chain):
                refusal = Refusal(
                    Code.BAD_SIGNATURE,
                    "The renewed certificate came with a signing key that the federation's known "
                    "key does not endorse; the known key is kept. If the server has lost its key, "
                    "enrol again.",
                )
                self._store.journal.note("refused", f"Refused a key: {refusal}", key=key.hex())
                raise refusal
        elif len(key) == KEY_BYTES:
            self.verifier = Verifier({key})
        self._keep(before)

    def _keep(self, before: frozenset[bytes]) -> None:
        if self.verifier.keys != before:
            (key,) = self.verifier.keys
            self._store.trust(key)
            text = f"The federation now signs with the key {fingerprint(key)}."
            log.info(text)
            self._store.journal.note("renewed", text, signing_key=key.hex())


def unsigned() -> Refusal:
    """The refusal of an offer without a signature."""
    return Refusal(
        Code.BAD_SIGNATURE,
        "Expected an offer signed by the federation's key, got one without a signature.",
    )
