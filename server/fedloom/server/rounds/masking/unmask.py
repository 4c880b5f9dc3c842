"""The sum of a session: bodies are added, seeds rebuilt from shares, masks taken off, sums checked.

Memory: one body, and a block of another. It is a function of stored messages alone, so it gives the
same bits after a restart. Rebuilt seeds are wiped before it returns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedloom.protocol.masking import (
    Recovery,
    RevealMessage,
    SessionRoster,
    SharesMessage,
    Survivors,
    add_body,
    apply_streams,
    leftover_masks,
    recover,
)
from fedloom.protocol.masking.body import BodyLayout, Bytes
from fedloom.server.ledger.masking import blames
from fedloom.server.planning.masked_form import MaskedForm
from fedloom.strategies import Partial

FALSE_SHARES = "false shares"
"""The start of the reason of a session whose members dealt or revealed false shares."""

IMPLAUSIBLE = "implausible sum"
"""The start of the reason of a session whose sum cannot be that of its members' updates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanged:
    """What the members of a session sent.

    Attributes:
        roster: its members.
        survivors: U2 and U3.
        dealt: member of U2 → the shares that it sent.
        reveals: member of U4 → what it revealed.
        complaints: member → dealers whose shares it could not use.
    """

    roster: SessionRoster
    survivors: Survivors
    dealt: Mapping[int, SharesMessage] = field(repr=False)
    reveals: Mapping[int, RevealMessage] = field(repr=False)
    complaints: Mapping[int, frozenset[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSum:
    """The sum of a session.

    Attributes:
        total: of the values; empty in an evaluation round.
        words: the sums of the words, by name.
    """

    total: Partial
    words: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoSum:
    """A session without a sum.

    Attributes:
        reason: why.
        at_fault: names of members that dealt or revealed false shares, and the cause of the blame.
        implausible: whether the sum is not one of admissible updates, which convicts nobody.
    """

    reason: str
    at_fault: Mapping[str, str] = field(default_factory=dict)
    implausible: bool = False


def unmask(said: Exchanged, bodies: Sequence[Path], form: MaskedForm) -> SessionSum | NoSum:
    """Compute the sum of a session, from the bodies of U3 in any order.

    Raises:
        OSError: a body cannot be read.
    """
    found = recover(said.roster, said.survivors, said.dealt, said.reveals, said.complaints)
    try:
        if not found.complete or found.false_revealers:
            return _no_sum(said.roster, found)
        total = _added(bodies, form.layout)
        left_over = leftover_masks(said.roster, said.survivors, found.seeds)
        apply_streams(total, form.layout, left_over)
    finally:
        for seed in found.seeds.values():
            seed[:] = bytes(len(seed))
    return _checked(form, total, len(bodies), said.roster.size)


def _checked(form: MaskedForm, body: Bytes, members: int, roster: int) -> SessionSum | NoSum:
    words = form.word_sums(body)
    if not (reason := form.implausible_words(words, members, roster)):
        total = form.total(body, members)
        if not (reason := form.implausible(total, words, roster)):
            return SessionSum(total=total, words=words)
    return NoSum(reason=f"{IMPLAUSIBLE}: {reason}", implausible=True)


def _added(bodies: Sequence[Path], layout: BodyLayout) -> Bytes:
    total = np.zeros(layout.size_bytes, np.uint8)
    for path in bodies:
        # The file has a footer after the body.
        add_body(total, layout, np.memmap(path, np.uint8, "r", shape=(layout.size_bytes,)))
    return total


def _no_sum(roster: SessionRoster, found: Recovery) -> NoSum:
    names = roster.names
    at_fault = dict.fromkeys((names[i] for i in found.false_revealers), blames.FALSE_REVEAL)
    at_fault |= dict.fromkeys((names[i] for i in found.false_dealers), blames.FALSE_SHARES)
    if at_fault:
        text = ", ".join(f"{name} {blames.CAUSES[why]}" for name, why in sorted(at_fault.items()))
        return NoSum(reason=f"{FALSE_SHARES}: {text}", at_fault=at_fault)
    short = ", ".join(names[i] for i in sorted(found.short))
    return NoSum(reason=f"fewer than {roster.threshold} usable shares of {short} were revealed")
