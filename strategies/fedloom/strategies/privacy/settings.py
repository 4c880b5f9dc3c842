"""The [privacy] table of a run: mechanism, noise and assumptions.

References:
    McMahan, Ramage, Talwar, Zhang 2018, Learning Differentially Private Recurrent Language
    Models, https://arxiv.org/abs/1710.06963 (dp_fedavg).
    Andrew, Thakkar, McMahan, Ramaswamy 2021, Differentially Private Learning with Adaptive
    Clipping, https://arxiv.org/abs/1905.03871 (clip_quantile).
    Kairouz, McMahan, Song, Thakkar, Thakurta, Xu 2021, Practical and Private (Deep) Learning
    without Sampling or Shuffling, https://arxiv.org/abs/2103.00039 (dp_ftrl).
    Choquette-Choo et al. 2023, (Amplified) Banded Matrix Factorization,
    https://arxiv.org/abs/2306.08153 (dp_bandmf).
    Kairouz, Liu, Steinke 2021, The Distributed Discrete Gaussian Mechanism,
    https://arxiv.org/abs/2102.06387 (distributed).
"""

import math
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from fedloom.strategies.checks import check_count, check_number
from fedloom.strategies.privacy.banded import MOST_BANDS, USUAL_BANDS

Mechanism: TypeAlias = Literal["dp_fedavg", "dp_ftrl", "dp_bandmf", "local", "distributed"]
Sampling: TypeAlias = Literal["none", "poisson", "without_replacement"]
Noise: TypeAlias = Literal["secure", "seed"]

GRID_BITS: Final = 20
"""The usual minimum of the noise's standard deviation: 2^20 units of the grid."""
FINE_BITS: Final = 24
"""The same for `dp_bandmf`, which rounds once more in each round of a band."""
CORRELATED: Final = ("dp_ftrl", "dp_bandmf")
"""Mechanisms with noise on the sum of all rounds so far."""
LEAST_LOCAL_NOISE: Final = 0.1
"""Least noise multiplier of local noise: with less a grid value would not fit float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Privacy:
    """Differential privacy of a run.

    Attributes:
        mechanism: `dp_fedavg` (noise on every round's sum), `dp_ftrl` (noise on the sum of all
            rounds so far, by a tree), `dp_bandmf` (the same by a banded matrix, with less noise),
            `local` (noise on the device) or `distributed` (each device of a masking session adds a
            share of the noise of its sum).
        clip: Euclidean norm to which a client's whole update is scaled down, > 0; with
            `clip_quantile`, its initial value.
        noise_multiplier: standard deviation of the noise over the clip, > 0; for `dp_ftrl` of
            each node of the tree, for `dp_bandmf` of each round before it is correlated, for
            `distributed` of the honest devices of a session together. None if `target_epsilon` is
            set.
        target_epsilon: epsilon after all rounds, > 0; the noise is calibrated to it.
        budget: epsilon at which the run stops, > 0; `target_epsilon` by default.
        delta: in (0, 1), and below 1 / population.
        population: number of clients from which a cohort of the goal's size is expected.
        sampling: assumption of the claim about the draw of cohorts. `none`: none, the same client
            may take part in every round. `poisson`: each client that is present is in a cohort
            by a coin of its own, of probability goal / population. `without_replacement`: cohorts
            of one size, of at least the population, every subset equally likely.
        clip_quantile: share of the clients whose updates should be within the clip, in (0, 1);
            None for a fixed clip.
        clip_learning_rate: of the clip towards the quantile, > 0.
        clip_count_noise: standard deviation of the noise on the number of clients within the
            clip, > noise_multiplier / 2; None for a twentieth of the cohort's goal, as Andrew et
            al. have it, and at least the noise multiplier.
        restart_every: `dp_ftrl`: rounds of one tree; a client takes part at most once in them.
        separation: `dp_bandmf`: a client takes part at most once in so many rounds in a row.
        bands: `dp_bandmf`: rounds whose noise is correlated, at most `separation`; by default the
            separation, and at most 64. The server keeps the noise of all but one of them.
        participations: `dp_ftrl` and `dp_bandmf`: rounds in which a client takes part at most;
            None for as many as the other settings allow.
        noise: `secure`, from a key that only the server or the device has; `seed`, from the run's
            seed: for simulations: with the seed the noise can be removed.

    Raises:
        TypeError: a setting has the wrong type.
        ValueError: a setting is out of range, or two are incompatible.
    """

    mechanism: Mechanism = "dp_fedavg"
    clip: float
    noise_multiplier: float | None = None
    target_epsilon: float | None = None
    budget: float | None = None
    delta: float
    population: int | None = None
    sampling: Sampling = "none"
    clip_quantile: float | None = None
    clip_learning_rate: float = 0.2
    clip_count_noise: float | None = None
    restart_every: int | None = None
    separation: int | None = None
    bands: int | None = None
    participations: int | None = None
    noise: Noise = "secure"

    def __post_init__(self) -> None:
        _check_choice("mechanism", self.mechanism, Mechanism)
        _check_choice("sampling", self.sampling, Sampling)
        _check_choice("noise", self.noise, Noise)
        check_number("clip", self.clip, above=0)
        check_number("delta", self.delta, above=0, below=1)
        check_number("clip_learning_rate", self.clip_learning_rate, above=0)
        for name in ("noise_multiplier", "target_epsilon", "budget", "clip_count_noise"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), above=0)
        if self.clip_quantile is not None:
            check_number("clip_quantile", self.clip_quantile, above=0, below=1)
        for name in ("population", "restart_every", "separation", "bands", "participations"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        self._check_together()

    @property
    def adaptive(self) -> bool:
        """Whether the clip follows a quantile."""
        return self.clip_quantile is not None

    @property
    def central(self) -> bool:
        """Whether the server adds the noise, to the sums of committed rounds alone."""
        return self.mechanism not in ("local", "distributed")

    @property
    def is_local(self) -> bool:
        """Whether each update is private by its own noise."""
        return self.mechanism == "local"

    @property
    def in_sessions(self) -> bool:
        """Whether the sums of masking sessions are private, by the noise of their members."""
        return self.mechanism == "distributed"

    @property
    def correlated(self) -> bool:
        """Whether the noise of rounds is correlated, and clients' participations are limited."""
        return self.mechanism in CORRELATED

    @property
    def num_bands(self) -> int:
        """The bands of the matrix of `dp_bandmf`."""
        assert self.separation is not None
        return min(self.separation, USUAL_BANDS) if self.bands is None else self.bands

    @property
    def grid_bits(self) -> int:
        """Bits of the noise's standard deviation in units of the grid of sums."""
        return FINE_BITS if self.mechanism == "dp_bandmf" else GRID_BITS

    @property
    def limit(self) -> float | None:
        """The epsilon at which the run stops."""
        return self.target_epsilon if self.budget is None else self.budget

    def _check_together(self) -> None:
        if (self.noise_multiplier is None) == (self.target_epsilon is None):
            raise ValueError(
                "Expected either privacy.noise_multiplier or privacy.target_epsilon, got "
                f"{self.noise_multiplier} and {self.target_epsilon}."
            )
        if self.population is not None and self.delta >= 1 / self.population:
            raise ValueError(
                f"Expected privacy.delta below 1 / population = {1 / self.population:g}, got "
                f"{self.delta:g}: with so large a delta a client's data could be published whole."
            )
        if self.sampling != "none" and self.population is None:
            raise ValueError(
                f'Expected privacy.population with sampling = "{self.sampling}", got none: '
                "privacy by sampling depends on it."
            )
        if self.mechanism != "dp_fedavg" and self.sampling != "none":
            raise ValueError(
                f'Expected sampling = "none" with mechanism = "{self.mechanism}", got '
                f'"{self.sampling}": its claim takes nothing from sampling.'
            )
        if self.mechanism != "dp_fedavg" and self.adaptive:
            raise ValueError(
                f'Expected no clip_quantile with mechanism = "{self.mechanism}", got '
                f"{self.clip_quantile}: only dp_fedavg has a clip that adapts."
            )
        if (self.mechanism == "dp_ftrl") != (self.restart_every is not None):
            raise ValueError(
                'Expected restart_every with mechanism = "dp_ftrl" and with nothing else, got '
                f'{self.restart_every} with "{self.mechanism}".'
            )
        self._check_bands()
        least = LEAST_LOCAL_NOISE
        if self.is_local and (self.noise_multiplier or least) < least:
            raise ValueError(
                f'Expected noise_multiplier >= {least:g} with mechanism = "local", got '
                f"{self.noise_multiplier}."
            )

    def _check_bands(self) -> None:
        if (self.mechanism == "dp_bandmf") != (self.separation is not None):
            raise ValueError(
                'Expected separation with mechanism = "dp_bandmf" and with nothing else, got '
                f'{self.separation} with "{self.mechanism}".'
            )
        if self.participations is not None and not self.correlated:
            raise ValueError(
                f"Expected participations with mechanism = {' or '.join(CORRELATED)}, got "
                f'{self.participations} with "{self.mechanism}", whose claim takes nothing from it.'
            )
        if self.bands is None:
            return
        most = min(self.separation or 0, MOST_BANDS)
        if self.bands > most:
            raise ValueError(
                f"Expected bands of at most separation = {self.separation or 'none'} and "
                f"{MOST_BANDS}, got {self.bands}: wider ones would hide a client less than claimed."
            )


def _check_choice(name: str, value: object, choices: object) -> None:
    known = get_args(choices)
    if value not in known:
        raise ValueError(f"Expected {name} of {', '.join(known)}, got {value!r}.")


def count_noise(settings: Privacy, noise_multiplier: float, goal: int) -> float:
    """Return the standard deviation of the noise on the number of clients within the clip."""
    given = settings.clip_count_noise
    return max(goal / 20, noise_multiplier) if given is None else given


def noise_of_values(noise_multiplier: float, count_noise: float) -> float:
    """Return the noise multiplier of the values when the count is released as well.

    Together the two releases then cost as much as one of `noise_multiplier`.

    Source: Andrew et al. 2021, Theorem 1: z_Δ = (z⁻² - (2σ_b)⁻²)^(-1/2). A client adds 1/2 or
    -1/2 to the count.

    Args:
        noise_multiplier: z, of both together.
        count_noise: σ_b, > z / 2.

    Raises:
        ValueError: the count alone costs more than that.

    >>> round(noise_of_values(1.0, 5.0), 4)
    1.005
    """
    rest = noise_multiplier**-2 - (2 * count_noise) ** -2
    if rest <= 0:
        raise ValueError(
            f"Expected clip_count_noise > noise_multiplier / 2 = {noise_multiplier / 2:g}, got "
            f"{count_noise:g}: the count alone would spend the budget."
        )
    return 1 / math.sqrt(rest)
