"""What a client takes the server's word for: offers that the federation's key signed for it.

Invariant: the key changes only to one that the present key vouches for; a client that was enrolled
before there were signatures learns it once, with a renewed certificate.
"""

import logging

from fedloom.client.state.store import ClientStore
from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.trust.identity import Peer
from fedloom.protocol.trust.signing import (
    KEY_BYTES,
    Addressee,
    VerifiedOffer,
    Verifier,
    fingerprint,
    open_offer,
)
from fedloom.protocol.v1 import enrolment_pb2, fleet_pb2, signing_pb2

log = logging.getLogger(__name__)


class Trust:
    """A client's view of the federation's signing key.

    Args:
        store: where the key rests.
        me: whom this client's certificate names.

    Attributes:
        verifier: for whatever else the server signs.
    """

    def __init__(self, store: ClientStore, me: Peer) -> None:
        self._store = store
        self._me = Addressee(me.federation, me.client)
        self.verifier = Verifier(store.trusted())

    @property
    def federation(self) -> str:
        """The federation of this client's certificate."""
        return self._me.federation

    @property
    def knows_key(self) -> bool:
        """Whether any key was ever learnt."""
        return bool(self.verifier.keys)

    def open(self, offer: fleet_pb2.SignedOffer) -> VerifiedOffer:
        """What an offer asks; a key that a known one endorsed is remembered.

        Raises:
            Refusal: it is not signed, or not for this client.
        """
        before = self.verifier.keys
        opened = open_offer(self.verifier, self._me, offer)
        self._keep(before)
        return opened

    def check(self, purpose: str, payload: bytes, signature: signing_pb2.Signature) -> None:
        """Is something else that the server says signed? An endorsed key is remembered.

        Raises:
            Refusal: BAD_SIGNATURE.
        """
        before = self.verifier.keys
        self.verifier.check(purpose, payload, signature)
        self._keep(before)

    def learn(self, issued: enrolment_pb2.IssuedCertificate) -> None:
        """Take the key that came with a renewed certificate, if it may be taken.

        Raises:
            Refusal: BAD_SIGNATURE where it is another key that the known one does not vouch for.
        """
        before, key = self.verifier.keys, issued.signing_key
        if before:
            if not self.verifier.follow(key, issued.signing_chain):
                refusal = Refusal(
                    Code.BAD_SIGNATURE,
                    "Expected the federation's signing key with a renewed certificate, got another "
                    "that it does not vouch for; the known one stays. If the server has lost its "
                    "key, enrol again.",
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
            text = f"The federation signs by the key {fingerprint(key)} from now on."
            log.info(text)
            self._store.journal.note("renewed", text, signing_key=key.hex())


def unsigned() -> Refusal:
    """Why an offer without a signature is not taken."""
    return Refusal(
        Code.BAD_SIGNATURE,
        "Expected an offer signed by the federation's key, got one without a signature.",
    )
