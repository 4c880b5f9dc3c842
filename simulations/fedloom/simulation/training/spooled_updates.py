"""A round's updates in files, for robust aggregation and colluding attackers.

Workers write updates in the format of the server's spool, and the server's code reads them. Memory
does not grow with the cohort, and a simulated round has the same bits as one over the wire.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from fedloom.protocol.errors import UsageError
from fedloom.protocol.manifest import Manifest
from fedloom.protocol.updates.message import TensorPart, write_body
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.storage.stored_updates import SpoolUpdates, StoredUpdate
from fedloom.simulation.experiment import Experiment
from fedloom.simulation.training.attacks import AttackedUpdates
from fedloom.simulation.workers.base import Report
from fedloom.strategies import Key, TensorSpec, Updates


class Spooled:
    """The files of one simulation."""

    def __init__(self, experiment: Experiment, specs: Mapping[Key, TensorSpec]) -> None:
        self._attack = experiment.attack
        self._names: Sequence[str] = experiment.population.names
        self._specs = dict(specs)
        self._attackers = frozenset(self._names[client] for client in experiment.attackers())
        self._folder = TemporaryDirectory(prefix="fedloom-updates-")

    @property
    def folder(self) -> str:
        """The folder of the files."""
        return self._folder.name

    def updates(self, number: int, reports: Iterable[Report]) -> Updates:
        """A round's accepted updates, as they were sent."""
        stored = [
            StoredUpdate(
                self._names[report.client],
                path_of(self.folder, number, report.client),
                fleet_pb2.UpdateHeader.FromString(report.header),
            )
            for report in reports
            if report.header
        ]
        updates = SpoolUpdates(self._specs, stored)
        if self._attack is None or not self._attack.colludes:
            return updates
        return AttackedUpdates(updates, self._attack, self._attackers)

    def clear(self) -> None:
        """Delete the files of a round that is over."""
        for path in Path(self.folder).iterdir():
            path.unlink()

    def close(self) -> None:
        """Delete the folder."""
        self._folder.cleanup()


def is_needed(experiment: Experiment) -> bool:
    """Whether the aggregation or the attack needs each update."""
    colludes = experiment.attack is not None and experiment.attack.colludes
    return colludes or experiment.spec.needs == "each"


def check(experiment: Experiment) -> None:
    """Refuse experiments that updates in files do not support.

    Raises:
        UsageError: workers on other machines, buffers, [privacy], or a client rule with scalars.
    """
    if not is_needed(experiment):
        return
    strategy, adapters = experiment.spec.build_strategy(), experiment.spec.build_adapters()
    who = f"the aggregation {strategy.aggregation.name}"
    if adapters.by_products:
        who = f'adapters.aggregate = "{adapters.aggregate}"'
    elif strategy.needs == "sum" and experiment.attack is not None:
        who = f"the attack {experiment.attack.name}"
    if experiment.engine.backend == "ray":
        raise UsageError(
            f'Set engine.backend = "local", not "ray": {who} reads every update from files.'
        )
    if experiment.spec.buffer_config() is not None:
        raise UsageError(f"{who} needs synchronous rounds, not buffers.")
    if experiment.spec.privacy:
        raise UsageError(f"{who} needs each update; with [privacy] only their sum is available.")
    if strategy.rule.scalars:
        raise UsageError(
            f"{who} does not support the client rule {strategy.rule.name}, which sends scalars."
        )


def path_of(folder: str, number: int, client: int) -> Path:
    """The file of a client's update in a round."""
    return Path(folder) / f"{number}.{client}"


def store(path: Path, parts: Sequence[TensorPart], manifest: Manifest, weight: float) -> bytes:
    """Write an update as a client would have uploaded it; returns its header."""
    described, size_bytes, _ = write_body(path, parts, manifest)
    header = fleet_pb2.UpdateHeader(weight=weight, parts=described, size_bytes=size_bytes)
    return header.SerializeToString()
