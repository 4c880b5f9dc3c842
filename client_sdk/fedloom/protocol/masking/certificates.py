"""Chains of certificates in adverts: verified to the root that a device learnt at enrolment."""

from datetime import datetime

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509 import verification

from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.masking.advert_checks import CertifiedKey
from fedloom.protocol.masking.adverts import Advert
from fedloom.protocol.trust.identity import UNREADABLE, peer_from_certificate


class ChainVerifier:
    """Verifies the chain of an advert's client, as `fedloom.protocol.masking.Identify`.

    Args:
        root_pem: root certificates, as learnt at enrolment.
        federation: of which members must be.
        now: time at which certificates must be valid, UTC.
    """

    def __init__(self, root_pem: bytes, federation: str, now: datetime) -> None:
        roots = verification.Store(x509.load_pem_x509_certificates(root_pem))
        self._verifier = verification.PolicyBuilder().store(roots).time(now).build_client_verifier()
        self._federation = federation

    def __call__(self, advert: Advert) -> CertifiedKey:
        """Return the key of an advert's chain.

        Raises:
            Refusal: BAD_SIGNATURE, the chain does not lead to the root or is not valid now;
                WRONG_IDENTITY, it names a client of another federation.
        """
        try:
            leaf, *others = x509.load_pem_x509_certificates(advert.chain)
            self._verifier.verify(leaf, others)
            key = leaf.public_key()
        except (verification.VerificationError, *UNREADABLE) as error:
            raise Refusal(
                Code.BAD_SIGNATURE,
                f"Expected certificates of {advert.name} that this federation's root vouches for "
                "and that are valid now, got others.",
                detail=repr(error),
            ) from None
        peer = peer_from_certificate(leaf)
        if peer.federation != self._federation or not isinstance(key, ec.EllipticCurvePublicKey):
            raise Refusal(
                Code.WRONG_IDENTITY,
                f"Expected a client of {self._federation}, got {advert.name} of {peer.federation}.",
            )
        return CertifiedKey(name=peer.client, serial=peer.serial, key=key)


def certified_key(advert: Advert) -> ec.EllipticCurvePublicKey:
    """The key in an advert whose chain was verified before, without another verification.

    Raises:
        Refusal: BAD_SIGNATURE, there is none.
    """
    try:
        key = x509.load_pem_x509_certificates(advert.chain)[0].public_key()
    except UNREADABLE:
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise Refusal(Code.BAD_SIGNATURE, f"Expected a certificate of {advert.name}, got none.")
    return key
