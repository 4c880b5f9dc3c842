"""The sets of members that completed the phases of a session, and what is revealed of them.

    U1 ⊇ U2 shared their secrets ⊇ U3 have their masked updates in the sum ⊇ U4 revealed

Of a member of U3 the shares of its self seed are revealed, of one of U2 ∖ U3 those of its pair
seed; never both, and nothing of others.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.masking.shamir import ELEMENT_BYTES, PRIME

_ENTRY: Final = 1 + ELEMENT_BYTES


class SeedKind(StrEnum):
    """Which of a member's seeds a share belongs to."""

    PAIR = "s"
    SELF = "b"


@dataclass(frozen=True, slots=True, kw_only=True)
class Survivors:
    """The sets that members agree on before they reveal anything.

    Attributes:
        shared: U2.
        masked: U3, a subset.

    Raises:
        Refusal: MASKING_REFUSED, it is none.
    """

    shared: frozenset[int]
    masked: frozenset[int]

    def __post_init__(self) -> None:
        if not self.masked <= self.shared:
            raise Refusal(
                Code.MASKING_REFUSED,
                "Expected survivors out of the members that were masked against, got others: "
                f"{sorted(self.masked - self.shared)}.",
            )

    @property
    def missing(self) -> frozenset[int]:
        """U2 ∖ U3: others masked against them, and their updates are not in the sum."""
        return self.shared - self.masked

    def kind(self, member: int) -> SeedKind:
        """The seed of a member of U2 that is revealed."""
        return SeedKind.SELF if member in self.masked else SeedKind.PAIR


@dataclass(frozen=True, slots=True)
class RevealMessage:
    """The shares that one member reveals.

    Attributes:
        shares: member of U2 → the revealer's share of its seed, 32 bytes; without those that it
            never got.
    """

    shares: Mapping[int, bytes] = field(repr=False)

    def to_bytes(self, survivors: Survivors) -> bytes:
        """For each member of U2 in order: `s` or `b` and the share, or 33 zeros without one."""
        return b"".join(
            survivors.kind(member).encode() + self.shares[member]
            if member in self.shares
            else bytes(_ENTRY)
            for member in sorted(survivors.shared)
        )

    @classmethod
    def from_bytes(cls, raw: bytes, survivors: Survivors) -> "RevealMessage":
        """The message of `to_bytes`.

        Raises:
            Refusal: MALFORMED, of another length, with another kind than these survivors need, or
                with a share that is no integer below p.
        """
        members = sorted(survivors.shared)
        if len(raw) != _ENTRY * len(members):
            raise Refusal(
                Code.MALFORMED,
                f"Expected shares of {len(members)} members in {_ENTRY * len(members)} bytes, got "
                f"{len(raw)} bytes.",
            )
        shares = {}
        for i, member in enumerate(members):
            entry = raw[i * _ENTRY : (i + 1) * _ENTRY]
            if entry == bytes(_ENTRY):
                continue
            kind, share = entry[:1], entry[1:]
            if kind != survivors.kind(member).encode() or int.from_bytes(share, "big") >= PRIME:
                raise Refusal(
                    Code.MALFORMED,
                    f"Expected a share of kind {survivors.kind(member)!r} of member {member}, an "
                    f"integer below p, got kind {kind!r}.",
                )
            shares[member] = share
        return cls(shares)
