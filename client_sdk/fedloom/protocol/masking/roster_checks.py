"""A device's checks of the list of ready clients, and of the session that it draws from it."""

from collections.abc import Sequence

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.masking.advert_checks import Identify, verify_adverts
from fedloom.protocol.masking.adverts import Advert
from fedloom.protocol.masking.roster import SessionRoster, sessions_of
from fedloom.protocol.masking.terms import MaskingFloors, RoundTerms


def checked_roster(
    ready: Sequence[Advert],
    own: Advert,
    terms: RoundTerms,
    floors: MaskingFloors,
    identify: Identify,
) -> SessionRoster:
    """Verify the list, and draw this client's session from it.

    Args:
        ready: all clients of one class that are ready.
        own: this client's advert.
        terms: of the try.
        floors: of the device's owner.
        identify: verifies a client's chain of certificates.

    Raises:
        Refusal: a signature, a name, a key or a class is wrong; this client's own advert is not in
            it as it was sent; or the list or the session is below a floor.
    """
    if sum(advert.digest() == own.digest() for advert in ready) != 1:
        raise _refused("Expected a list with this client's own advert once, got another list.")
    if len(ready) < floors.min_ready:
        raise _refused(
            f"Expected at least {floors.min_ready} ready clients, as this device's policy says "
            f"(masking.min_ready), got {len(ready)}."
        )
    verified = verify_adverts(ready, own.pid, identify)
    for each in verified:
        terms.check_class(each.advert.name, each.advert.coverage)
    sessions = sessions_of(verified, own.pid, terms.group)
    roster = next(each for each in sessions if own.name in each.names)
    if roster.size < floors.min_group:
        raise _refused(
            f"Expected a session of at least {floors.min_group} members, as this device's policy "
            f"says (masking.min_group), got one of {roster.size}."
        )
    _check_peers(roster, own, floors)
    return roster


def _check_peers(roster: SessionRoster, own: Advert, floors: MaskingFloors) -> None:
    if floors.peers is None:
        return
    for member in roster.members:
        key = member.key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        if member.advert.name != own.name and key not in floors.peers:
            raise _refused(
                "Expected members whose keys this device's policy lists (masking.peers), got "
                f"{member.advert.name} with another key."
            )


def _refused(message: str) -> Refusal:
    return Refusal(Code.MASKING_REFUSED, message)
