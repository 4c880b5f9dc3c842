"""The adverts of a round's members that are ready: checked, drawn into sessions, listed as a file.

Pure but for the files that `ReadyList.write` makes.

Invariants: names and keys of all adverts differ, or devices would refuse the list of all others.
The adverts that a draw used stay those of its sessions, whatever comes later.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedloom.protocol.atomic_files import write_whole
from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.masking import (
    Advert,
    Identify,
    RoundTerms,
    VerifiedAdvert,
    certified_key,
    draw_sessions,
    verify_advert,
)
from fedloom.protocol.v1 import fleet_pb2


class ReadyMembers:
    """The members that are ready.

    Args:
        terms: of the round's try.
        identify: verifies the chain of an advert.
    """

    def __init__(self, terms: RoundTerms, identify: Identify) -> None:
        self._terms = terms
        self._identify = identify
        self._ready: dict[str, VerifiedAdvert] = {}
        self._drawn: dict[str, VerifiedAdvert] = {}

    def verify(self, raw: bytes, client: str) -> VerifiedAdvert:
        """Verify what a client sent when it was ready.

        Raises:
            Refusal: it is no valid advert of this client, for this try of the round, or states
                another class than its name has.
        """
        advert = Advert.from_bytes(raw)
        if advert.name != client:
            raise Refusal(
                Code.WRONG_IDENTITY,
                f"Expected the advert of {client}, got one of {advert.name[:80]!r}.",
            )
        found = verify_advert(advert, self._terms.pid, self._identify)
        self._terms.check_class(client, advert.coverage)
        return found

    def add(self, found: VerifiedAdvert) -> None:
        """Add a member's advert, in place of its earlier one.

        Raises:
            Refusal: MALFORMED, a key is in another advert, or another client's certificate has its
                key, as that of a copied disk.
        """
        others = [each for n, each in self._ready.items() if n != found.advert.name]
        taken = {key for each in others for key in _keys(each.advert)}
        own = _keys(found.advert)
        if len(set(own)) != len(own) or taken.intersection(own):
            raise Refusal(
                Code.MALFORMED, "Expected fresh keys in an advert, got one that was seen before."
            )
        if any(each.key.public_numbers() == found.key.public_numbers() for each in others):
            raise Refusal(
                Code.MALFORMED,
                "Expected a certificate of this client's own key, got one whose key another client "
                "has: enrol the device anew.",
            )
        self._ready[found.advert.name] = found

    def divide(self, coverage: str, names: Sequence[str]) -> Sequence[Sequence[str]]:
        """Draw the sessions of the ready members of a class; their adverts are fixed now."""
        self._drawn |= {name: self._ready[name] for name in names}
        nonces = {name: self._ready[name].advert.nonce for name in names}
        return draw_sessions(self._terms.pid, coverage, nonces, self._terms.group)

    def drawn(self, names: Iterable[str]) -> tuple[VerifiedAdvert, ...]:
        """The adverts of members of sessions, by name."""
        return tuple(self._drawn[name] for name in sorted(names))

    def restore(self, stored: Mapping[str, bytes]) -> None:
        """Take over the adverts of sessions, which were verified before they were stored."""
        self._drawn |= verified_before(stored)

    def is_drawn(self, client: str, raw: bytes) -> bool:
        """Whether this is the advert with which a member is in its session."""
        found = self._drawn.get(client)
        return found is not None and found.advert.to_bytes() == raw


def verified_before(stored: Mapping[str, bytes]) -> dict[str, VerifiedAdvert]:
    """The adverts of sessions by name, which were verified before they were stored."""
    adverts = {name: Advert.from_bytes(raw) for name, raw in stored.items()}
    return {n: VerifiedAdvert(advert=a, key=certified_key(a)) for n, a in adverts.items()}


def _keys(advert: Advert) -> tuple[bytes, bytes]:
    return advert.channel_key, advert.pair_key


@dataclass(frozen=True, slots=True)
class ReadyList:
    """The list of all ready members of one class, as devices download it.

    Attributes:
        content: a serialised `fleet_pb2.ReadyList`.
        digest: of the content, SHA-256 in lower-case hex.
    """

    content: bytes = field(repr=False)
    digest: str

    @classmethod
    def of(cls, adverts: Iterable[VerifiedAdvert]) -> "ReadyList":
        """The list of these adverts, sorted by name."""
        found = sorted((each.advert for each in adverts), key=lambda advert: advert.name)
        content = fleet_pb2.ReadyList(adverts=[advert.to_bytes() for advert in found])
        raw = content.SerializeToString(deterministic=True)
        return cls(raw, hashlib.sha256(raw).hexdigest())

    @property
    def ref(self) -> fleet_pb2.ModelRef:
        """What to download."""
        return fleet_pb2.ModelRef(digest=self.digest, size_bytes=len(self.content))

    def write(self, path: Path) -> None:
        """Write the list where it is missing."""
        if not path.exists():
            write_whole(path, self.content, mode=0o600)
