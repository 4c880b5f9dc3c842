"""The [masking] table of a run: sums of sessions, in which only the sum of all members is readable.

References:
    Bonawitz et al. 2017, Practical Secure Aggregation for Privacy-Preserving Machine Learning,
    https://eprint.iacr.org/2017/281.
    Bell et al. 2020, Secure Single-Server Aggregation with (Poly)Logarithmic Overhead,
    https://eprint.iacr.org/2020/704.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final, Literal, TypeAlias

from fedloom.strategies.checks import check_count, check_number
from fedloom.strategies.exact.grid import SUM_BITS
from fedloom.strategies.masking.sessions import LEAST_GROUP, MAX_GROUP

SumBits: TypeAlias = Literal[16, 24, 32, 64]
Simulate: TypeAlias = Literal["sum", "full"]

USUAL_MIN_GROUP: Final = 16
USUAL_BOUNDS: Final[Mapping[str, float]] = {"accuracy": 1.0, "loss": 1e4}
"""Metrics that clients send by default, and the bounds of their magnitudes."""
_PRECISION: Final = 1e-6
_UPLOAD_S: Final = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Masking:
    """Settings of masked sums.

    Attributes:
        group: most members of a session, from 3 to 128.
        min_group: fewest members of a session, from 3 to `group`.
        sum_bits: of a word of a masked update, and of the sum of a session; 16, 24, 32 or 64.
        precision: largest step of the sums, in units of the values at weight 1; None for
            10^-6 · max_abs.
        phase_s: seconds that a session waits for its members in each phase.
        upload_s: seconds that members have for their masked updates; None for 300, or `session_s`
            where that is less.
        session_s: seconds after which a session that has not ended is abandoned.
        simulate: of simulations: `sum` adds updates as a session does, without masks, to the same
            bits; `full` runs the protocol.
        metrics: metric → bound of its magnitude. Only these metrics are sent, as masked words; a
            value beyond its bound counts as the bound.

    Raises:
        TypeError: a setting has the wrong type.
        ValueError: a setting is out of range.
    """

    group: int = 64
    min_group: int = USUAL_MIN_GROUP
    sum_bits: SumBits = 32
    precision: float | None = None
    phase_s: float = 30.0
    upload_s: float | None = None
    session_s: float = 600.0
    simulate: Simulate = "sum"
    metrics: Mapping[str, float] = field(default_factory=lambda: dict(USUAL_BOUNDS))

    def __post_init__(self) -> None:
        check_count("masking.min_group", self.min_group, at_least=LEAST_GROUP)
        check_count("masking.group", self.group, at_least=LEAST_GROUP)
        if not self.min_group <= self.group <= MAX_GROUP:
            raise ValueError(
                f"Expected masking.min_group <= masking.group <= {MAX_GROUP}, got "
                f"{self.min_group} and {self.group}."
            )
        if self.sum_bits not in SUM_BITS:
            raise ValueError(f"Expected masking.sum_bits of {SUM_BITS}, got {self.sum_bits!r}.")
        if self.simulate not in ("sum", "full"):
            raise ValueError(f'Expected masking.simulate of sum, full, got "{self.simulate}".')
        for name in ("phase_s", "session_s"):
            check_number(f"masking.{name}", getattr(self, name), above=0)
        if self.precision is not None:
            check_number("masking.precision", self.precision, above=0)
        check_number("masking.upload_s", self.upload_limit_s, above=0)
        for name, seconds in (("phase_s", self.phase_s), ("upload_s", self.upload_limit_s)):
            if seconds > self.session_s:
                raise ValueError(
                    f"Expected masking.{name} <= masking.session_s, got {seconds:g} and "
                    f"{self.session_s:g}."
                )
        if not isinstance(self.metrics, Mapping):
            raise TypeError(
                f"Expected masking.metrics as a table of bounds by metric, got {self.metrics!r}."
            )
        for name, bound in self.metrics.items():
            check_number(f"masking.metrics.{name}", bound, above=0)

    @property
    def upload_limit_s(self) -> float:
        """Seconds that members have for their masked updates."""
        return min(_UPLOAD_S, self.session_s) if self.upload_s is None else self.upload_s

    def precision_of(self, max_abs: float) -> float:
        """The largest step that the run accepts, in units of the values at weight 1."""
        return _PRECISION * max_abs if self.precision is None else self.precision

    def check_words(self, max_weight: float, max_examples: float) -> None:
        """Refuse bounds under which a sum of a session's words would not fit 64 bits.

        Args:
            max_weight: largest weight of an update.
            max_examples: largest number of examples that counts for a metric.

        Raises:
            ValueError: the message names the word and what fits.
        """
        scale, most = Fraction(2) ** 20, Fraction(2) ** 62
        if self.group * Fraction(max_weight) * scale >= most:
            raise ValueError(
                f"Expected max_weight < {float(most / scale / self.group):.6g} in sessions of "
                f"{self.group}, so that their sum of weights fits 64 bits, got {max_weight:g}."
            )
        for name, bound in self.metrics.items():
            largest = (most / self.group - 1) / scale / Fraction(max_examples)
            if Fraction(bound) >= largest:
                raise ValueError(
                    f"Expected masking.metrics.{name} < {float(largest):.4g} with "
                    f"{max_examples:g} examples at most and sessions of {self.group}, so that its "
                    f"sum fits 64 bits, got {bound:g}. Lower the bound, metrics.max_weight or "
                    "max_weight."
                )
