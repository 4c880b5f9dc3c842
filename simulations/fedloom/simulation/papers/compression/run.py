"""Each case over the wire for its bytes, and simulated with several seeds for its accuracy.

The first seed is run both ways, and must end with the same model: so the bytes are of the very
runs whose accuracy is told. Results are a JSON file for each case; what is there is not run again.
"""

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedloom.protocol.atomic_files import write_whole
from fedloom.protocol.errors import IntegrityError
from fedloom.simulation.api import simulate
from fedloom.simulation.papers.compression.cases import CASES, CLIENTS, Case, experiment
from fedloom.simulation.wire import byte_meter
from fedloom.simulation.wire.harness import over_the_wire

COMMITTED = Path(__file__).parent / "results"
"""Our results, with their README."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One case's figures.

    Attributes:
        name: of the case.
        data: of the task.
        rounds: of each run.
        up: bytes from clients to the server, of one client in one round: all that was on the wire
            over the run, by rounds and clients.
        down: bytes from the server to clients, likewise.
        accuracies: in the end, on the test examples, by seed.
        curve: rounds → accuracy, mean over the seeds.
        digest: of the model that the first seed ended with, simulated and over the wire.
        seconds: that all of it took.
    """

    name: str
    data: str
    rounds: int
    up: float
    down: float
    accuracies: list[float]
    curve: list[tuple[int, float]]
    digest: str
    seconds: float

    @property
    def accuracy(self) -> float:
        """Mean over the seeds."""
        return statistics.fmean(self.accuracies)

    @property
    def spread(self) -> float:
        """Standard deviation over the seeds."""
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else 0.0


def run(
    cases: Sequence[Case],
    out: Path,
    *,
    data: Mapping[str, Any],
    rounds: int,
    seeds: int,
    told: Callable[[str], object],
) -> None:
    """Measure what is not measured yet.

    Args:
        cases: which.
        out: a file for each is written there.
        data: settings of the experiment's [data].
        rounds: of each run.
        seeds: that accuracy is a mean of.
        told: of what is being done.

    Raises:
        IntegrityError: over the wire and simulated, a run ended with other bits.
    """
    out.mkdir(parents=True, exist_ok=True)
    for case in cases:
        path = out / f"{data['source']}-{case.name.replace('%', '')}.json"
        if path.exists():
            told(f"{case.name}: measured before, in {path}")
            continue
        found = measure(case, data=data, rounds=rounds, seeds=seeds, told=told)
        write_whole(path, json.dumps(asdict(found), indent=1) + "\n")


def measure(
    case: Case,
    *,
    data: Mapping[str, Any],
    rounds: int,
    seeds: int,
    told: Callable[[str], object],
) -> Measured:
    """Run one case; arguments as those of `run`."""
    begin = time.monotonic()
    told(f"{case.name}: over the wire")
    counts, digest = _bytes(experiment(case, data=data, rounds=rounds, seed=0))
    accuracies, curves = [], []
    for seed in range(seeds):
        told(f"{case.name}: seed {seed} of {seeds}, simulated")
        result = simulate(experiment(case, data=data, rounds=rounds, seed=seed), show=False)
        if seed == 0 and result.digest != digest:
            raise IntegrityError(
                f"Expected the model {digest[:12]} of the run over the wire, got "
                f"{result.digest[:12]} simulated."
            )
        tests = [(r.trained, r.test["accuracy"]) for r in result.records if r.test]
        accuracies.append(tests[-1][1])
        curves.append(tests)
    shares = rounds * CLIENTS
    return Measured(
        name=case.name,
        data=str(data["source"]),
        rounds=rounds,
        up=counts.up / shares,
        down=counts.down / shares,
        accuracies=accuracies,
        curve=[
            (points[0][0], round(statistics.fmean(p[1] for p in points), 5))
            for points in zip(*curves, strict=True)
        ],
        digest=digest,
        seconds=round(time.monotonic() - begin, 1),
    )


def _bytes(described: Any) -> tuple[byte_meter.Counts, str]:

    with TemporaryDirectory(prefix="fedloom-meter-") as folder:
        path = Path(folder) / "bytes.json"
        result = over_the_wire(described, show=False, meter=path)
        return byte_meter.read(path), result.digest


def load(folder: Path, data: str | None = None) -> list[Measured]:
    """What lies in a folder, in the order of the cases."""
    order = [case.name for case in CASES]
    found = [
        Measured(**json.loads(path.read_text("utf-8"))) for path in sorted(folder.glob("*-*.json"))
    ]
    wanted = [f for f in found if data is None or f.data == data]
    return sorted(wanted, key=lambda f: (f.data, order.index(f.name)))
