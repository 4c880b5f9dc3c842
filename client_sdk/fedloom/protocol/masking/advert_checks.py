"""Checks of adverts: certificate, signature, keys, and that no two clients are the same.

Devices and the server run the same checks: the server so that one client's invalid advert does not
end the session of all others.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric import ec

from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.masking.adverts import Advert
from fedloom.protocol.masking.keys import check_public_key
from fedloom.protocol.masking.statements import READY, check_signature


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifiedKey:
    """What a verified chain of certificates says.

    Attributes:
        name: of the client.
        serial: of its certificate, 40 lower-case hex digits.
        key: the certificate's public key.
    """

    name: str
    serial: str
    key: ec.EllipticCurvePublicKey


Identify = Callable[[Advert], CertifiedKey]
"""Verifies the chain of an advert's client: from `chain`, or from a stored one by `serial`.

It checks the path to the root learnt at enrolment, the federation and validity, and raises a
Refusal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedAdvert:
    """An advert whose signature is valid.

    Attributes:
        advert: it.
        key: the certificate's public key; later signatures of this client are checked with it.
    """

    advert: Advert
    key: ec.EllipticCurvePublicKey


def verify_advert(advert: Advert, pid: bytes, identify: Identify) -> VerifiedAdvert:
    """Verify one advert.

    Args:
        advert: of a client.
        pid: of this round's try.
        identify: verifies its chain.

    Raises:
        Refusal: BAD_SIGNATURE, WRONG_IDENTITY, STALE_ROUND or MALFORMED, or what `identify` raises.
    """
    if advert.pid != pid:
        raise Refusal(
            Code.STALE_ROUND,
            f"Expected adverts for this task and this try of its round, got one of {advert.name} "
            "for another.",
        )
    certified = identify(advert)
    if (certified.name, certified.serial) != (advert.name, advert.serial):
        raise Refusal(
            Code.WRONG_IDENTITY,
            f"Expected an advert with the certificate of {advert.name}, got the certificate "
            f"{certified.serial} of {certified.name}.",
        )
    check_signature(certified.key, READY, advert.digest(), advert.signature, advert.name)
    check_public_key(advert.channel_key, advert.name)
    check_public_key(advert.pair_key, advert.name)
    return VerifiedAdvert(advert=advert, key=certified.key)


def verify_adverts(
    adverts: Iterable[Advert], pid: bytes, identify: Identify
) -> tuple[VerifiedAdvert, ...]:
    """Verify the list of clients that are ready; sorted by name.

    Raises:
        Refusal: as `verify_advert`; also MALFORMED if a name or a key occurs twice, a key of
            certificates included, or classes differ.
    """
    found = [verify_advert(advert, pid, identify) for advert in adverts]
    found.sort(key=lambda each: each.advert.name)
    names = {each.advert.name for each in found}
    keys = {key for each in found for key in (each.advert.channel_key, each.advert.pair_key)}
    if len(names) != len(found) or len(keys) != 2 * len(found):
        raise Refusal(
            Code.MALFORMED,
            f"Expected {len(found)} clients with different names and keys, got {len(names)} names "
            f"and {len(keys)} of {2 * len(found)} keys.",
        )
    if len({each.key.public_numbers() for each in found}) != len(found):
        raise Refusal(
            Code.MALFORMED,
            f"Expected {len(found)} clients with certificates of different keys, got one key under "
            "several names: one device could pose as many.",
        )
    classes = {each.advert.coverage for each in found}
    if len(classes) > 1:
        raise Refusal(
            Code.MALFORMED,
            f"Expected clients whose updates cover the same, got the classes {sorted(classes)}.",
        )
    return tuple(found)
