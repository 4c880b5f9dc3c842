"""The privacy claim of a run, as figures and text, before it starts and after every round.

A claim is a figure with all its conditions: what is protected, against whom, with which delta,
sampling assumption and clipping; and what is not protected.

Invariant: a claim follows from the run's specification alone.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedloom.strategies.masking.sessions import colluders, honest
from fedloom.strategies.privacy import accounting
from fedloom.strategies.privacy.accounting import Releases
from fedloom.strategies.privacy.banded import MOST_ROUNDS, prefix_noise_of_trees
from fedloom.strategies.privacy.model_advice import advice
from fedloom.strategies.privacy.settings import Privacy, count_noise, noise_of_values

CENTRAL: Final = "anyone who sees the models, of any or all rounds"
LOCAL: Final = "anyone who sees a client's updates or the models, including the server"
SESSIONS: Final = (
    "anyone who sees the models, and the server, which sees the sum of each masking session, also "
    "together with up to {most} of its devices"
)

_NEIGHBOURS: Final = {
    "zero-out": "a client's updates are replaced by zeros",
    "add-or-remove": "a client is added or removed, the others being present at the same times",
    "replace": "a client's updates are replaced by any others",
}
_SAMPLING: Final = {
    "none": "none assumed: the same client may be in every round",
    "limited": "none assumed: any of the clients that may take part may be in a round",
    "poisson": "Poisson: each client that is present when a round opens is drawn with probability "
    "{cohort}/{population}, by an independent secret coin",
    "without_replacement": "without replacement: {cohort} of {population} clients a round, every "
    "subset equally likely, drawn in secret",
}
_TAKING_PART: Final = "which clients take part in which round, and when they answer"
_UNFIT: Final = "that a device's update was unfit, or that it dropped out"
_OWN_CODE: Final = "anything that the clients' own code sends or prints outside its updates"
_HIDDEN: Final = "which clients are drawn stays secret: whoever learns it is not covered"
_NO_ABORT: Final = "no operator aborts rounds because of who was drawn"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A run's privacy, with its noise multiplier.

    Attributes:
        settings: the [privacy] table.
        noise_multiplier: as given, or calibrated to the target.
        goal: clients of a round.
        rounds: training rounds that the run wants.
        affordable: number of rounds that the budget allows.
        sessions: fewest and most members of its masking sessions, for `distributed`.
    """

    settings: Privacy
    noise_multiplier: float
    goal: int
    rounds: int
    affordable: int
    sessions: tuple[int, int] | None = None

    @property
    def releases(self) -> Releases:
        """The releases of the run."""
        return Releases.of(self.settings, self.noise_multiplier, self.goal, self.rounds)

    def epsilon(self, rounds: int) -> float:
        """Return epsilon after a number of rounds that were released."""
        return accounting.epsilon(self.releases, rounds, self.settings.delta)

    @property
    def last(self) -> int:
        """Rounds that the claim allows."""
        return min(self.rounds, self.affordable)

    def released(self, trained: int, opened: int) -> int:
        """Return the rounds that have cost epsilon.

        With noise from devices an abandoned round costs as much as another one, since the server
        has seen its updates, or may have seen sums of sessions. A run then opens no more than
        `last` training rounds.

        Args:
            trained: committed training rounds.
            opened: rounds, with abandoned ones and evaluations.
        """
        return trained if self.settings.central else max(trained, min(opened, self.last))

    def spent(self, trained: int, opened: int) -> dict[str, float]:
        """Return the privacy record after so many rounds; arguments as `released`."""
        epsilon = self.epsilon(self.released(trained, opened))
        return {"epsilon": epsilon, "delta": self.settings.delta}

    def stopped(self, trained: int) -> str:
        """Return why a finished run committed fewer rounds than wanted; empty if it did all."""
        if trained < self.last and not self.settings.central:
            return (
                f"{self.last} training rounds were opened, as many as its privacy claim has: "
                f"{trained} were committed, and abandoned ones cost epsilon too"
            )
        if self.affordable >= self.rounds:
            return ""
        return (
            f"the privacy budget is spent: epsilon {self.epsilon(self.affordable):.4g} of "
            f"{self.settings.limit:g} after {self.affordable} of {self.rounds} rounds"
        )

    def after(self, trained: int, opened: int) -> str:
        """Return the spent budget in a line; arguments as `released`."""
        spent = self.spent(trained, opened)
        return f"(epsilon {spent['epsilon']:.4g}, delta {self.settings.delta:g})"

    def claim(self, tensors: Iterable[str] = ()) -> dict[str, Any]:
        """Return the claim as JSON values, for the ledger; with advice on a model's tensors."""
        settings, last = self.settings, self.last
        return {
            "mechanism": settings.mechanism,
            "epsilon": self.epsilon(last),
            "delta": settings.delta,
            "rounds": last,
            "protects": "the whole contribution of any one client, in all rounds together",
            "against": self._against(),
            "server": self._server(),
            "neighbours": f"{self.releases.relation}: {_NEIGHBOURS[self.releases.relation]}",
            "sampling": self._sampling(),
            "clip": settings.clip,
            "clipping": self._clipping(),
            "noise_multiplier": self.noise_multiplier,
            "noise": self._noise(),
            "randomness": self._randomness(),
            "denominator": f"{self.goal} clients a round, for any number of reports",
            "budget": settings.limit,
            "assumes": self._assumes(),
            "not_hidden": self._not_hidden(),
            "accounting": self._accounting(),
            "advice": advice(tensors),
        }

    def _against(self) -> str:
        if self.sessions is not None:
            return SESSIONS.format(most=self._of_sessions(colluders))
        return CENTRAL if self.settings.central else LOCAL

    def _of_sessions(self, count: Callable[[int], int]) -> str:
        """A number of members of the smallest session and of the largest one, as text."""
        assert self.sessions is not None
        return " and ".join(f"{count(n)} of {n}" for n in dict.fromkeys(self.sessions))

    def _not_hidden(self) -> list[str]:
        found = [] if self._sampled else [_TAKING_PART]
        return [*found, *([_UNFIT] if self.sessions else []), _OWN_CODE]

    def _server(self) -> str:
        if self.sessions is not None:
            return "not trusted with the data: it sees the sums of sessions, with their noise"
        if self.settings.central:
            return "trusted: it sees every clipped update and holds the key of the noise"
        return "not trusted with the data: it sees updates with their noise only"

    def _sampling(self) -> str:
        text = _SAMPLING["limited" if self.settings.correlated else self.settings.sampling]
        return text.format(cohort=self.goal, population=self.settings.population)

    def _clipping(self) -> str:
        settings = self.settings
        if settings.adaptive:
            return (
                f"each update to a norm that starts at {settings.clip:g} and follows the "
                f"{settings.clip_quantile:g} quantile, enforced by the server"
            )
        if settings.central:
            return f"each update to a norm of {settings.clip:g}, enforced by the server"
        return f"each update to a norm of {settings.clip:g}, by its device"

    def _noise(self) -> str:
        settings, z = self.settings, self.noise_multiplier
        if self.sessions is not None:
            least, last = self.sessions
            most = z * max(math.sqrt(n / honest(n)) for n in range(least, last + 1))
            return (
                f"{z:g} × clip on the sum of each session, by the devices that are sure to be "
                f"honest and in it ({self._of_sessions(honest)}); up to {most:.3g} × clip by "
                "all of them"
            )
        if settings.is_local:
            return f"{z:g} × clip on each device's update"
        if settings.correlated:
            return f"{z:g} × clip {self._correlated()}{self._error()}"
        if settings.adaptive:
            count = count_noise(settings, z, self.goal)
            value = noise_of_values(z, count)
            return (
                f"{value:.4g} × clip on each round's sum, {count:g} on the number within the clip"
            )
        return f"{z:g} × clip on each round's sum"

    def _correlated(self) -> str:
        if self.releases.factor is None:
            return f"on each node of a tree over {self.settings.restart_every} rounds"
        bands = self.releases.factor.bands
        kept = f" (kept by the server: {bands - 1} × 4 bytes a parameter)" if bands > 1 else ""
        return f"in each round, correlated over {bands} rounds by a banded matrix{kept}"

    def _error(self) -> str:
        rounds = self.last
        if rounds > MOST_ROUNDS:
            return ""
        noise = self.noise_multiplier * self._prefix_noise(rounds)
        mean = math.sqrt(float(np.mean(noise**2)))
        return f"; on sums of the first rounds {mean:.3g} × clip, at most {noise.max():.3g}"

    def _prefix_noise(self, rounds: int) -> NDArray[np.float64]:
        made, every = self.releases.factor, self.settings.restart_every
        if made is not None:
            return made.prefix_noise(rounds)
        assert every is not None
        return prefix_noise_of_trees(rounds, every)

    def _randomness(self) -> str:
        if self.settings.noise == "seed":
            return (
                "from the run's seed, for simulation: anyone who knows the seed can remove the "
                "noise, so this makes no claim about a deployment"
            )
        if self.sessions is not None:
            return "exact discrete Gaussian, drawn by each device for one update alone"
        holder = "server" if self.settings.central else "device"
        return f"exact discrete Gaussian, keyed by a secret that only the {holder} has"

    def _assumes(self) -> list[str]:
        assumed = ["whether a client answers does not depend on its data"]
        if self.sessions is not None:
            assumed.append(
                "no more devices of a session than named work with the server, or leave out their "
                "noise"
            )
        if self.settings.correlated:
            assumed.append(f"a client takes part {self._schema()}, which the server enforces")
        if self._sampled:
            assumed += [_HIDDEN, _NO_ABORT]
        if self.settings.sampling == "without_replacement":
            assumed.append(
                f"a round opens only when {self.settings.population} clients are available, which "
                "the server enforces"
            )
        return assumed

    def _schema(self) -> str:
        settings = self.settings
        text = f"at most once in each tree of {settings.restart_every} rounds"
        if settings.separation is not None:
            text = f"at most once in any {settings.separation} rounds in a row"
        most = settings.participations
        return text if most is None else f"{text}, and in at most {most} rounds"

    @property
    def _sampled(self) -> bool:
        return self.settings.sampling != "none"

    def _accounting(self) -> str:
        if self.sessions is not None:
            return "dp-accounting, concentrated privacy of sums of discrete Gaussians"
        if not self._sampled:
            return "dp-accounting, exact for composed Gaussians"
        return "dp-accounting, the smaller of Rényi and privacy loss distributions"


@lru_cache(maxsize=64)
def plan(
    settings: Privacy, *, goal: int, rounds: int, sessions: tuple[int, int] | None = None
) -> Plan:
    """Determine a run's noise and the number of rounds it can have.

    Args:
        settings: the [privacy] table.
        goal: clients of a round.
        rounds: training rounds.
        sessions: fewest and most members of its masking sessions; for `distributed` alone.

    Raises:
        MissingAccountant: dp-accounting is not installed.
        ValueError: the cohort does not fit the population, or the budget allows no round.
    """
    population = settings.population
    if population is not None and goal > population:
        raise ValueError(
            f"Expected cohort.goal of at most privacy.population = {population}, got {goal}."
        )
    noise = settings.noise_multiplier
    if noise is None:
        assert settings.target_epsilon is not None
        unknown = Releases.of(settings, 1.0, goal, rounds)
        noise = accounting.calibrate(unknown, rounds, settings.delta, settings.target_epsilon)
    if settings.adaptive:
        noise_of_values(noise, count_noise(settings, noise, goal))
    affordable = rounds
    if settings.limit is not None:
        releases = Releases.of(settings, noise, goal, rounds)
        affordable = accounting.affordable(releases, rounds, settings.delta, settings.limit)
        if not affordable:
            first = accounting.epsilon(releases, 1, settings.delta)
            raise ValueError(
                f"Expected a budget for at least one round, got {settings.limit:g}, where the "
                f"first costs {first:.4g}. Raise privacy.noise_multiplier or privacy.budget."
            )
    return Plan(
        settings=settings,
        noise_multiplier=float(noise),
        goal=goal,
        rounds=rounds,
        affordable=affordable,
        sessions=sessions if settings.in_sessions else None,
    )


def claim_lines(claim: dict[str, Any]) -> list[str]:
    """Return a claim as lines of text, the figure first.

    >>> from fedloom.strategies.privacy import Privacy, plan
    >>> run = plan(Privacy(clip=1.0, noise_multiplier=10, delta=1e-5), goal=20, rounds=100)
    >>> claim_lines(run.claim())[0]  # doctest: +SKIP
    '(epsilon 4.378, delta 1e-05) after 100 rounds, by dp_fedavg'
    """
    figure = f"(epsilon {claim['epsilon']:.4g}, delta {claim['delta']:g})"
    budget = "" if claim["budget"] is None else f", stops at a budget of {claim['budget']:g}"
    return [
        f"{figure} after {claim['rounds']} rounds, by {claim['mechanism']}{budget}",
        f"protects: {claim['protects']}",
        f"against: {claim['against']}",
        f"server: {claim['server']}",
        f"neighbours: {claim['neighbours']}",
        f"sampling: {claim['sampling']}",
        f"clipping: {claim['clipping']}",
        f"noise: {claim['noise']}; {claim['randomness']}",
        f"denominator: {claim['denominator']}",
        f"assumes: {'; '.join(claim['assumes'])}",
        f"does not hide: {'; '.join(claim['not_hidden'])}",
        f"accounting: {claim['accounting']}",
        *(f"advice: {text}" for text in claim.get("advice", ())),
    ]
