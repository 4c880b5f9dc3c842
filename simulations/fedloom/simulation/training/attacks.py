"""Attacks: clients that change their updates before they send them.

Attackers train like all other clients and then change their updates, so admission checks them as on
a deployed server. Colluding attackers know only each other's updates; their common update is made
when all of them have trained.

References:
    Li, Xu, Chen, Giannakis, Ling 2019, RSA: Byzantine-Robust Stochastic Aggregation Methods for
    Distributed Learning from Heterogeneous Datasets, https://arxiv.org/abs/1811.03761, section 5
    (sign flipping with a factor).
    Bagdasaryan et al. 2020, How To Backdoor Federated Learning, https://arxiv.org/abs/1807.00459,
    section 3.3 (scaling up to take the mean over).
    Baruch, Baruch, Goldberg 2019, A Little Is Enough: Circumventing Defenses For Distributed
    Learning, https://arxiv.org/abs/1902.06156, Algorithm 3 and equation for z_max in section 4.1.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.errors import UsageError
from fedloom.protocol.settings import call, lookup, named
from fedloom.simulation.seeds import stream
from fedloom.strategies import Key, TensorSpec, Updates
from fedloom.strategies.checks import check_number
from fedloom.strategies.exact.partial import Floats
from fedloom.strategies.robust.base import Covered


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """The attackers; subclasses define the attack.

    Attributes:
        fraction: of all clients, in [0, 1); attackers are drawn once, by the run's seed.
        spared: names of clients that never attack, such as a trusted one.
    """

    name: ClassVar[str]
    colludes: ClassVar[bool] = False
    """Whether attackers need each other's updates."""

    fraction: float
    spared: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_number("fraction", self.fraction, at_least=0, below=1)

    def attackers(self, names: Sequence[str], seed: int) -> frozenset[int]:
        """Return the attackers as indices into the names, rounded to the nearest number."""
        if unknown := sorted(set(self.spared) - set(names)):
            raise UsageError(f"attack.spared names an unknown client, {unknown[0]!r}.")
        open_to = [number for number, name in enumerate(names) if name not in self.spared]
        count = min(len(open_to), round(self.fraction * len(names)))
        drawn = stream(seed, "attack").choice(len(open_to), count, replace=False)
        return frozenset(open_to[number] for number in drawn)

    def alone(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the values that an attacker sends for one tensor, in the same dtype."""
        return values

    def together(self, values: Floats, covered: Covered, num_clients: int) -> Floats:
        """Return the values that attackers send for one block.

        Args:
            values: of the attackers, float64 [f, k].
            covered: bool [f, k], or True for all.
            num_clients: in the round, n.
        """
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale(Attack):
    """Sends factor times the update.

    Attributes:
        factor: > 0.
    """

    name: ClassVar[str] = "scale"
    sign: ClassVar[int] = 1
    factor: float = 100.0

    def __post_init__(self) -> None:
        Attack.__post_init__(self)
        check_number("factor", self.factor, above=0)

    def alone(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return sign · factor · values."""
        return (values * (self.sign * self.factor)).astype(values.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignFlip(Scale):
    """Sends -factor times the update.

    Attributes:
        factor: > 0. At 1 a minority only slows the mean down; from (1 - fraction) / fraction on
            the mean changes its sign.
    """

    name: ClassVar[str] = "sign_flip"
    sign: ClassVar[int] = -1
    factor: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ALittleIsEnough(Attack):
    """All send the mean of their updates minus z standard deviations (Baruch et al. 2019).

    Attributes:
        z: > 0; default: the paper's z_max, the largest for which enough honest updates are
            expected to be farther out, for the number of clients in the round.
    """

    name: ClassVar[str] = "a_little_is_enough"
    colludes: ClassVar[bool] = True
    z: float | None = None

    def __post_init__(self) -> None:
        Attack.__post_init__(self)
        if self.z is not None:
            check_number("z", self.z, above=0)

    def together(self, values: Floats, covered: Covered, num_clients: int) -> Floats:
        """Return mean - z · deviation of each coordinate, over the attackers that cover it."""
        there = np.broadcast_to(np.asarray(covered), values.shape)
        count = np.maximum(there.sum(axis=0), 1)
        mean = values.sum(axis=0) / count
        spread = np.sqrt((np.where(there, values - mean, 0.0) ** 2).sum(axis=0) / count)
        z = z_max(num_clients, len(values)) if self.z is None else self.z
        return np.where(there, mean - z * spread, 0.0)


def z_max(num_clients: int, num_attackers: int) -> float:
    """Return Baruch et al.'s z_max: Φ(z) = (n - f - s) / (n - f), with s = ⌊n / 2 + 1⌋ - f.

    It is 0 where that would be negative.
    """
    honest = num_clients - num_attackers
    supporters = num_clients // 2 + 1 - num_attackers
    share = (honest - supporters) / honest if honest else 0.0
    return max(0.0, NormalDist().inv_cdf(min(max(share, 0.5), 1 - 1e-9)))


ATTACKS: Final[dict[str, Callable[..., Attack]]] = {
    "sign_flip": SignFlip,
    "scale": Scale,
    "a_little_is_enough": ALittleIsEnough,
}


def attack(table: Mapping[str, Any]) -> Attack | None:
    """An attack from its table; None for an empty table.

    Raises:
        UsageError: a name or setting is unknown, missing or out of range.
    """
    if not table:
        return None
    name, settings = named(table, "attack", ATTACKS)
    build = lookup("an attack", name, ATTACKS)
    if isinstance(settings.get("spared"), list):
        settings["spared"] = tuple(settings["spared"])
    return call(build, settings, owner=name, table="attack")


class AttackedUpdates(Updates):
    """A round's updates with those of colluding attackers replaced.

    Args:
        updates: as trained.
        how: the attack.
        attackers: their names; not all need to be in the round.
    """

    def __init__(self, updates: Updates, how: Attack, attackers: frozenset[str]) -> None:
        self._updates = updates
        self._how = how
        self._rows = [n for n, name in enumerate(updates.clients) if name in attackers]

    @property
    def clients(self) -> Sequence[str]:
        """Names of the clients, sorted."""
        return self._updates.clients

    @property
    def weights(self) -> Floats:
        """The weight of each update."""
        return self._updates.weights

    @property
    def specs(self) -> Mapping[Key, TensorSpec]:
        """The tensors that updates may have."""
        return self._updates.specs

    def covered(self, key: Key) -> bool:
        """Return whether any update covers this tensor."""
        return self._updates.covered(key)

    def ranges(self, key: Key) -> Iterator[tuple[int, int]]:
        """Yield `(start, stop)` that tile the tensor."""
        return self._updates.ranges(key)

    def block(self, key: Key, start: int, stop: int) -> tuple[Floats, Covered]:
        """Return the values of the flat coordinates `start:stop`, and which are covered."""
        values, covered = self._updates.block(key, start, stop)
        if self._rows:
            theirs: Covered = True if covered is True else covered[self._rows]
            sent = self._how.together(values[self._rows], theirs, len(values))
            # In the dtype of the wire.
            values[self._rows] = sent.astype(np.result_type(self.specs[key].dtype, np.float32))
        return values, covered

    def one(self, number: int, key: Key) -> Floats | None:
        """Return a whole tensor of one update; see `Updates.one`."""
        found = self._updates.one(number, key)
        if found is None or number not in self._rows:
            return found
        for start, stop in self.ranges(key):
            found[start:stop] = self.block(key, start, stop)[0][number]
        return found
