"""The demo's result as text for a terminal."""

from dataclasses import dataclass

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from fedloom.cli.common.output import make_table
from fedloom.simulation.data.population import Population
from fedloom.simulation.demo.baselines import Baselines
from fedloom.simulation.demo.settings import DemoSettings
from fedloom.simulation.output import words


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """Figures of a demo.

    Attributes:
        settings: of the demo.
        counts: training examples of each class, by client.
        num_held_out: examples that accuracies are measured on.
        federated: accuracy after 0, 1, … rounds; NaN where no client evaluated.
        baselines: centralised, and each client alone.
        federated_s: seconds from submitting the run to its end.
    """

    settings: DemoSettings
    counts: dict[str, tuple[int, ...]]
    num_held_out: int
    federated: tuple[float, ...]
    baselines: Baselines
    federated_s: float

    @property
    def accuracy(self) -> float:
        """Accuracy of the final federated model."""
        return self.federated[-1]

    @property
    def difference(self) -> float:
        """Accuracy of centralised training minus that of the federated model."""
        return self.baselines.centralised[-1] - self.accuracy


def label_counts(population: Population) -> dict[str, tuple[int, ...]]:
    """Training examples of each class, by client."""
    num_classes = population.num_classes or 0
    return {
        name: tuple(np.bincount(population.examples.y[shard], minlength=num_classes).tolist())
        for name, shard in zip(population.names, population.shards, strict=True)
    }


def holdings(counts: dict[str, tuple[int, ...]]) -> RenderableType:
    """A table of each client's training examples by class."""
    labels = range(len(next(iter(counts.values()))))
    columns = ["client", *(f">{label}" for label in labels), ">all"]
    rows = [
        [client, *(f"[cyan]{n}[/]" if n else "[dim]·[/]" for n in row), f"[bold]{sum(row)}[/]"]
        for client, row in counts.items()
    ]
    totals = [sum(row[label] for row in counts.values()) for label in labels]
    rows.append([f"[dim]{cell}[/]" for cell in ("all", *totals, sum(totals))])
    return Group(Text("Training examples by label", "bold"), make_table(columns, rows))


def summary(outcome: DemoResult) -> RenderableType:
    """The federated model beside centralised training and each client alone."""
    settings, baselines = outcome.settings, outcome.baselines
    epochs = words.things(settings.epochs, "local epoch")
    rows = [
        [
            "federated",
            f"[bold green]{words.metric('accuracy', outcome.accuracy)}[/]",
            f"{settings.rounds} rounds of {epochs} in {words.duration(outcome.federated_s)}",
        ],
        [
            "centralised",
            words.metric("accuracy", baselines.centralised[-1]),
            f"all examples in one place, {_points(outcome.difference)} federated",
        ],
    ]
    for client, accuracy in baselines.alone.items():
        counts = outcome.counts[client]
        held = f"{words.things(sum(counts), 'example')} of {sum(map(bool, counts))} labels"
        rows.append([f"{client} alone", words.metric("accuracy", accuracy), f"[dim]{held}[/]"])
    title = f"Accuracy on {outcome.num_held_out} held-out examples"
    return Group(Text(title, "bold"), make_table(["model", ">accuracy", "training"], rows))


def _points(difference: float) -> str:
    above = "above" if difference >= 0 else "below"
    return f"{abs(difference) * 100:.2f} points {above}"
