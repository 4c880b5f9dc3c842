"""The demo's result, as text in the terminal."""

from dataclasses import dataclass

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedloom.simulation.data.population import Population
from fedloom.simulation.demo.baselines import Baselines
from fedloom.simulation.demo.settings import DemoSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """Figures of a demo.

    Attributes:
        settings: what was run.
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
        """Of the federated model at the end."""
        return self.federated[-1]

    @property
    def difference(self) -> float:
        """By how much centralised training is better, in accuracy."""
        return self.baselines.centralised[-1] - self.accuracy


def label_counts(population: Population) -> dict[str, tuple[int, ...]]:
    """How many training examples of each class each client holds."""
    num_classes = population.num_classes or 0
    return {
        name: tuple(np.bincount(population.examples.y[shard], minlength=num_classes).tolist())
        for name, shard in zip(population.names, population.shards, strict=True)
    }


def holdings(counts: dict[str, tuple[int, ...]]) -> RenderableType:
    """A table of what each client holds: examples of each class."""
    table = Table(
        title="Training examples by label", title_justify="left", box=None, pad_edge=False
    )
    table.add_column("client")
    num_classes = len(next(iter(counts.values())))
    for label in range(num_classes):
        table.add_column(str(label), justify="right", style="cyan")
    table.add_column("all", justify="right", style="bold")
    for client, row in counts.items():
        shown = (Text("·", style="dim") if not n else Text(str(n)) for n in row)
        table.add_row(client, *shown, str(sum(row)))
    totals = np.sum(list(counts.values()), axis=0).tolist()
    table.add_section()
    table.add_row("all", *map(str, totals), str(sum(totals)), style="dim")
    return table


def summary(outcome: DemoResult) -> RenderableType:
    """The report's text: federated beside centralised and beside each client alone."""
    settings, baselines = outcome.settings, outcome.baselines
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim")
    table.add_column(justify="right")
    table.add_column()
    table.add_row(
        "federated",
        Text(f"{outcome.accuracy:.2%}", style="bold green"),
        f"{settings.rounds} rounds of {_epochs(settings)} in {outcome.federated_s:.0f} s",
    )
    table.add_row(
        "centralised",
        f"{baselines.centralised[-1]:.2%}",
        f"all examples in one place: {_points(outcome.difference)} the federated model",
    )
    for client, accuracy in baselines.alone.items():
        counts = outcome.counts[client]
        held = f"{sum(counts)} examples of {sum(map(bool, counts))} labels"
        table.add_row(f"{client} alone", f"{accuracy:.2%}", Text(held, style="dim"))
    return Group(Text(f"Accuracy on {outcome.num_held_out} held-out examples", "bold"), table)


def _epochs(settings: DemoSettings) -> str:
    return "1 local epoch" if settings.epochs == 1 else f"{settings.epochs} local epochs"


def _points(difference: float) -> str:
    above = "above" if difference >= 0 else "below"
    return f"{abs(difference) * 100:.2f} points {above}"
