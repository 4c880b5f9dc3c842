"""A masking session in a simulation: every key, share, mask and signature, for `simulate = "full"`.

The engine's session decides, devices and the server's side are those of `fedloom.protocol.masking`,
and messages are handed over in memory. All members stay: the clock has decided who is ready.
"""

import hashlib
from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np

from fedloom.protocol import masking
from fedloom.protocol.trust.identity import generate_key
from fedloom.server.engine import (
    AgreementStored,
    AllFrozen,
    BodiesFrozen,
    BodyStored,
    ForwardShares,
    Freeze,
    MaskedConfig,
    MaskingSession,
    RevealStored,
    SendSignatures,
    SendSurvivors,
    SessionEvent,
    SessionState,
    SharesStored,
    Unmask,
    Unmasked,
)
from fedloom.strategies import Partial

LEAST = 3
"""The fewest members of a session."""


def sum_in_session(
    total: Partial,
    members: Mapping[str, tuple[Partial, Sequence[int]]],
    *,
    sum_bits: int,
    run: str,
    number: int,
) -> list[int]:
    """Replace the sums of `total` by those that a session of masked bodies gives.

    Args:
        total: of all members, whose weights stay.
        members: name → the sum of its update alone, and its words.
        sum_bits: of a masked word.
        run: id.
        number: of the round.

    Returns:
        The sums of the words, modulo 2^64 and with a sign.
    """
    keys = [key for key in sorted(total.specs) if total.covered(key)]
    sizes = [total.specs[key].size for key in keys]
    words = len(next(iter(members.values()))[1])
    layout = masking.BodyLayout(sum_bits=sum_bits, num_values=sum(sizes), num_words=words)
    bodies = {
        name: masking.write_body(
            layout,
            [own.sum_block(key, 0, size) for key, size in zip(keys, sizes, strict=True)],
            sent,
        )
        for name, (own, sent) in members.items()
    }
    found = _Session(bodies, layout, run, number).play()
    arrays, _ = total.arrays()  # the live ones
    places, start = {key: place for place, key in enumerate(total.specs)}, 0
    for key, size in zip(keys, sizes, strict=True):
        arrays[f"sums.{places[key]}"][:] = masking.read_values(layout, found, start, start + size)
        start += size
    return [int(word) for word in masking.read_words(layout, found)]


class _Session:
    """The server and the devices of one session."""

    def __init__(
        self, bodies: Mapping[str, "np.ndarray[tuple[int], np.dtype[np.uint8]]"],
        layout: masking.BodyLayout, run: str, number: int,
    ) -> None:  # fmt: skip
        names = sorted(bodies)
        self.names, self.bodies, self.layout = names, bodies, layout
        self.keys = {name: generate_key() for name in names}
        terms = masking.RoundTerms(
            federation="simulation",
            run=run,
            round=number,
            attempt=1,
            core=hashlib.sha256(f"{run} {number}".encode()).digest(),
            group=len(names),
        )
        self.devices = [
            masking.Member(
                terms,
                name=name,
                serial=f"{place:040x}",
                sign=masking.signer(self.keys[name]),
                floors=masking.MaskingFloors(min_group=LEAST),
            )
            for place, name in enumerate(names)
        ]
        config = MaskedConfig(goal=len(names), quorum=len(names), group=len(names), min_group=2)
        self.engine = MaskingSession(0, names, config, 0.0)
        self.total = np.zeros(layout.size_bytes, np.uint8)
        self.effects: deque[object] = deque()
        self.reveals: dict[int, masking.RevealMessage] = {}

    def identify(self, advert: masking.Advert) -> masking.CertifiedKey:
        """The key of a device: a simulation has no authority."""
        key = self.keys[advert.name].public_key()
        return masking.CertifiedKey(name=advert.name, serial=advert.serial, key=key)

    def play(self) -> "np.ndarray[tuple[int], np.dtype[np.uint8]]":
        """Return the body of the sum."""
        adverts = [device.advert for device in self.devices]
        self.dealt = [device.join(adverts, self.identify) for device in self.devices]
        for name in self.names:
            self._feed(SharesStored(name))
        while self.effects:
            self._perform(self.effects.popleft())
        assert self.engine.state is SessionState.DONE, self.engine.reason
        return self.total

    def _feed(self, event: SessionEvent) -> None:
        self.effects.extend(self.engine.handle(event, 0.0))

    def _places(self, names: Sequence[str]) -> frozenset[int]:
        return frozenset(self.names.index(name) for name in names)

    def _perform(self, effect: object) -> None:
        match effect:
            case ForwardShares(_, shared):
                self.shared = self._places(shared)
                for place in sorted(self.shared):
                    self._mask(place)
                    self._feed(BodyStored(self.names[place]))
            case Freeze():
                self._feed(BodiesFrozen(0))
                self._feed(AllFrozen())
            case SendSurvivors(_, masked):
                self.masked = self._places(masked)
                self.signed = {
                    place: self.devices[place].agree(self.masked) for place in self.masked
                }
                for name in masked:
                    self._feed(AgreementStored(name))
            case SendSignatures(_, _, to):
                for place in sorted(self._places(to)):
                    self.reveals[place] = self.devices[place].reveal(self.signed)
                    self._feed(RevealStored(self.names[place]))
            case Unmask(_, revealed):
                self._unmask(self._places(revealed))
                self._feed(Unmasked(0))

    def _mask(self, place: int) -> None:
        peers = self.shared - {place}
        complaints = self.devices[place].receive(
            self.shared, {dealer: self.dealt[dealer].shares[place] for dealer in peers}
        )
        assert not complaints
        body = self.bodies[self.names[place]]
        self.devices[place].mask(body, self.layout)
        masking.add_body(self.total, self.layout, body)

    def _unmask(self, revealed: frozenset[int]) -> None:
        roster = self.devices[0].roster
        assert roster is not None
        survivors = masking.Survivors(shared=self.shared, masked=self.masked)
        reveals = {place: self.reveals[place] for place in revealed}
        found = masking.recover(roster, survivors, dict(enumerate(self.dealt)), reveals, {})
        assert found.complete, found
        left_over = masking.leftover_masks(roster, survivors, found.seeds)
        masking.apply_streams(self.total, self.layout, left_over)
