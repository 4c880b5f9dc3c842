"""The form of the masked bodies of a round, and of their sums.

Server and devices order the values alike: the tensors that updates cover, by group, then by name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.masking.body import BodyLayout, Bytes, read_values, read_words
from fedloom.protocol.masking.encoding import Slices, width_class
from fedloom.protocol.task_words import words_of
from fedloom.protocol.updates.masked_parts import from_parts, narrowed
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.planning import limits
from fedloom.server.planning.masking import sum_limits
from fedloom.server.planning.round_plan import RoundPlan, task_of
from fedloom.strategies import Partial
from fedloom.strategies.exact.fixed_point import MASKED_WEIGHT_BITS, UNIT_BITS
from fedloom.strategies.exact.grid import Grid
from fedloom.strategies.exact.partial import WEIGHT_UNIT, Full, Key, TensorSpec
from fedloom.strategies.masking.noise import SessionNoise
from fedloom.strategies.masking.plausible import (
    SumLimits,
    implausible,
    implausible_weight,
    implausible_words,
)
from fedloom.strategies.masking.words import WEIGHT, MaskedWords


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedForm:
    """The form of the bodies of a round.

    Attributes:
        specs: what updates cover of the tensors, in the order of a body; none in an evaluation
            round.
        slices: of the tensors that updates cover in part.
        empty: a sum of the round without updates.
        sum_bits: of a masked value.
        words: of a body.
        grid: of the sums.
        max_norm: of an update; None for any.
        noise: of the sessions; None for none.
    """

    specs: Mapping[Key, TensorSpec]
    slices: Slices
    empty: Partial
    sum_bits: int
    words: MaskedWords
    grid: Grid
    max_norm: float | None
    noise: SessionNoise | None

    @classmethod
    def of(cls, plan: RoundPlan) -> "MaskedForm":
        """Return the form of the bodies of a masked round."""
        spec, task = plan.spec, task_of(plan)
        masking, grid = spec.build_masking(), spec.grid()
        assert masking is not None
        assert grid is not None
        empty, words = limits.empty_sum(spec, plan.manifest), words_of(task)
        specs = dict(sorted(empty.specs.items())) if task.train else {}
        return cls(
            specs=specs,
            slices={},
            empty=empty,
            sum_bits=masking.sum_bits,
            words=words,
            grid=grid,
            max_norm=plan.limits.max_norm,
            noise=spec.session_noise() if task.train else None,
        )

    @property
    def layout(self) -> BodyLayout:
        """Of a body."""
        return BodyLayout(
            sum_bits=self.sum_bits,
            num_values=sum(each.size for each in self.specs.values()),
            num_words=len(self.words.names),
        )

    def covering(self, parts: Sequence[fleet_pb2.Part], coverage: str) -> "MaskedForm":
        """Return the form of the bodies of a session.

        Args:
            parts: of the header of a member's body.
            coverage: the class of the session; empty without widths.

        Raises:
            Refusal: the parts are not those of the class, or not of this model.
        """
        slices = from_parts(parts)
        width, _, _ = coverage.partition(":")
        stated = width_class(float(width), slices) if coverage else ""
        if stated != coverage or (slices and not coverage):
            raise Refusal(
                Code.MASKING_REFUSED,
                "Expected a masked update with the slices of its session's class "
                f"{coverage or 'of whole models'}, got {len(slices)} others.",
            )
        return replace(self, specs=narrowed(self.specs, slices), slices=slices)

    def word_sums(self, body: Bytes) -> dict[str, int]:
        """The sums of the words in a body, by name."""
        return dict(zip(self.words.names, read_words(self.layout, body), strict=True))

    def total(self, body: Bytes, members: int) -> Partial:
        """The sum of these many updates whose masks are off, and whose words are plausible."""
        total, layout, start = self.empty.empty(), self.layout, 0
        units = self._units(self.word_sums(body), members)
        for key, spec in self.specs.items():
            sums = read_values(layout, body, start, start + spec.size)
            total.add_sums(key, self.slices.get(key, Full()), units, sums)
            start += spec.size
        total.count = members if self.specs else 0
        return total

    def implausible_words(self, words: Mapping[str, int], members: int, roster: int) -> str:
        """Why sums of words cannot be those of updates within the limits; empty if they can.

        Args:
            words: the sums.
            members: whose updates are in them.
            roster: members of the session.
        """
        found = implausible_words(self.words, words, members)
        if found or not self.specs:
            return found
        return implausible_weight(self._units(words, members), members, self._limits(roster))

    def implausible(self, total: Partial, words: Mapping[str, int], roster: int) -> str:
        """Why a sum cannot be that of updates within the limits; empty if it can.

        Args:
            total: the sum.
            words: the sums of the words, which are plausible.
            roster: members of the session.
        """
        if not self.specs:
            return ""
        return implausible(total, self._units(words, total.count), self._limits(roster))

    def _limits(self, roster: int) -> SumLimits:
        """The limits of a session of so many members, from which the noise of each follows."""
        return sum_limits(
            self.grid,
            max_norm=self.max_norm,
            noise=self.noise,
            members=roster,
            size=self.layout.num_values,
        )

    def weight(self, words: Mapping[str, int], members: int) -> float:
        """The sum of the weights of so many updates."""
        return float(self._units(words, members) * Fraction(WEIGHT_UNIT))

    def _units(self, words: Mapping[str, int], members: int) -> int:
        """The sum of the weights; those that are no word are 1."""
        if not self.words.weighted:
            return members << UNIT_BITS
        return words[WEIGHT] << UNIT_BITS - MASKED_WEIGHT_BITS
