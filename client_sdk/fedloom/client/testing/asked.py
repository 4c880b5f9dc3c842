"""The settings of a run that clients use, from the tables of a run.toml, without a server.

Cohorts, selection and privacy concern only the server.
"""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_type_hints

from fedloom.client.api import Scalar
from fedloom.protocol.errors import UsageError
from fedloom.protocol.manifest import Manifest
from fedloom.protocol.settings import call, checked, named, typed
from fedloom.protocol.task_description import WEIGHTINGS, TaskDescription, task_seed
from fedloom.protocol.task_message import to_message
from fedloom.protocol.tensors.container import write_params
from fedloom.protocol.updates.compression import Scheme, scheme
from fedloom.protocol.updates.message import Limits
from fedloom.protocol.v1 import fleet_pb2
from fedloom.strategies import (
    Adapters,
    Key,
    LocalTraining,
    Params,
    Personal,
    Strategy,
    TensorSpec,
    client_rule,
    exponent,
    strategy,
)

_SERVERS = frozenset({"cohort", "selection", "metrics", "rounds"})
"""Settings of a run that only the server uses."""
_REFUSED = {"aggregation": "a robust rule", "privacy": "noise"}
_BESIDE = 64
"""Updates that a server's sums have room for, in addition to twice the cohort's goal."""
TRAIN: Mapping[str, Any] = {"epochs": 1, "batch_size": 32, "learning_rate": 0.1}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """The settings of a run that clients use, with the meanings and defaults of a run.toml.

    Attributes:
        name: of the run.
        strategy: name and settings.
        rule: likewise.
        train: settings of `LocalTraining`.
        config: for the client's code.
        personal: settings of `Personal`.
        adapters: settings of `Adapters`.
        compression: `{"up": {"name": …}}`.
        weighting: examples, client or uniform. Default: examples if the strategy supports it.
        evaluate: clients evaluate each received model.
        seed: of the clients' randomness.
        max_abs: maximum magnitude of a value.
        max_norm: maximum norm of an update; None for no limit.
        max_weight: maximum weight of an update.
    """

    name: str = "test"
    strategy: Mapping[str, Any] = field(default_factory=lambda: {"name": "fedavg"})
    rule: Mapping[str, Any] = field(default_factory=lambda: {"name": "plain"})
    train: Mapping[str, Any] = field(default_factory=lambda: TRAIN)
    config: Mapping[str, Scalar] = field(default_factory=dict)
    personal: Mapping[str, Any] = field(default_factory=dict)
    adapters: Mapping[str, Any] = field(default_factory=dict)
    compression: Mapping[str, Any] = field(default_factory=dict)
    weighting: str = "examples"
    evaluate: bool = True
    seed: int = 0
    max_abs: float = 1024.0
    max_norm: float | None = None
    max_weight: float = float(1 << 18)

    @classmethod
    def of(cls, tables: "Mapping[str, Any] | RunSettings | None") -> "RunSettings":
        """Read the tables of a run.toml; those that only the server uses are ignored.

        Raises:
            UsageError: a table is unknown, or needs a server.
        """
        if isinstance(tables, RunSettings):
            return tables
        given = dict(tables or {})
        for name, what in _REFUSED.items():
            if given.get(name) not in (None, {}, {"name": "mean"}):
                raise UsageError(
                    f"Expected a run without [{name}] to test a client, because {what} needs a "
                    "server. Use `fedloom simulate`, or remove the table."
                )
        known = get_type_hints(cls)
        found = checked(given, dict.fromkeys((*_SERVERS, *_REFUSED), Any) | known)
        run = cls(**{name: value for name, value in found.items() if name in known})
        if "weighting" not in given:
            run = run._weighted()
        try:
            run.built()
            run.training()
            run.own()
            run.low_rank()
            run.scheme()
        except (TypeError, ValueError, KeyError) as error:
            raise UsageError(str(error)) from None
        typed("weighting", run.weighting, Literal[WEIGHTINGS])
        return run

    def _weighted(self) -> "RunSettings":
        try:
            takes = getattr(self.built(), "weightings", WEIGHTINGS)
        except (TypeError, ValueError, KeyError) as error:
            raise UsageError(str(error)) from None
        return self if "examples" in takes else replace(self, weighting="uniform")

    def built(self) -> Strategy:
        """The strategy, with its client rule."""
        rule = client_rule(*named(self.rule, "rule"), table="rule")
        return strategy(*named(self.strategy, "strategy"), rule=rule, table="strategy")

    def training(self) -> LocalTraining:
        """The settings of local training."""
        return call(LocalTraining, self.train, table="train")

    def own(self) -> Personal:
        """The settings of personal tensors and models."""
        return call(Personal, self.personal, table="personal")

    def low_rank(self) -> Adapters:
        """What is averaged of low-rank adapters."""
        return call(Adapters, self.adapters, table="adapters")

    def scheme(self) -> Scheme | None:
        """The encoding of updates."""
        up = self.compression.get("up")
        return scheme(up, table="compression.up") if up else None

    def sums(self, manifest: Manifest) -> dict[Key, TensorSpec]:
        """The tensors of updates."""
        stay = self.own().kept(manifest.specs) | self.low_rank().frozen(manifest.specs)
        asked = self.training().matching(manifest.specs.keys() - stay)
        return self.built().specs({n: s for n, s in manifest.specs.items() if n in asked})

    def exponent(self, clients: int) -> int:
        """The exponent of a round's sums, as on a server with this cohort goal."""
        heaviest = 1.0 if self.weighting == "uniform" else self.max_weight
        return exponent(self.max_abs, heaviest * (2 * clients + _BESIDE))

    def limits(self, manifest: Manifest) -> Limits:
        """The limits that admission checks."""
        rule, encoded = self.built().rule, self.scheme()
        return Limits(
            max_abs=self.max_abs,
            max_norm=self.max_norm,
            max_weight=self.max_weight,
            weighting=self.weighting,
            groups=rule.groups,
            max_bytes=manifest.full_update_bytes(len(rule.groups)),
            codec=None if encoded is None else encoded.codec,
            scalars=rule.scalars,
            kept=self.own().kept(manifest.specs),
            adapters=self.low_rank() if self.adapters else None,
        )

    def task(
        self, number: int, client: str, clients: int, seed: int | None = None, **fields: Any
    ) -> fleet_pb2.Task:
        """Return the offer of a round.

        Args:
            number: of the round, from 1.
            client: name.
            clients: number of clients in the round.
            seed: of the client's randomness. Default: derived from the run's.
            fields: further fields of `TaskDescription`.
        """
        return to_message(
            TaskDescription(
                run=self.name,
                round=number,
                settings=self.training().at(number, clients),
                rule=self.built().rule,
                evaluate=self.evaluate,
                weighting=self.weighting,
                deadline_s=600.0,
                seed=task_seed(self.seed, number, client) if seed is None else seed,
                scheme=self.scheme(),
                personal=self.own(),
                adapters=self.low_rank(),
                config=self.config,
                **fields,
            )
        )


def written(params: Params, path: Path) -> str:
    """Write a model; returns its digest.

    Raises:
        UsageError: the format does not support a tensor's dtype.
    """
    with path.open("wb") as file:
        return write_params(file, params)


@contextmanager
def folder() -> Iterator[Path]:
    """A temporary folder for the agents' state."""
    with tempfile.TemporaryDirectory(prefix="fedloom-testing-") as made:
        yield Path(made)
