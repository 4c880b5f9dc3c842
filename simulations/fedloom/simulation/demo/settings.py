"""Settings of a demo.

The defaults were chosen by `benchmarks/demo_settings.py`, which repeats them over seeds.
"""

from dataclasses import dataclass
from typing import Any

from fedloom.protocol.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """One experiment.

    Attributes:
        data: name of the data in the report.
        num_clients: number of client processes.
        alpha: Dirichlet concentration of the labels over the clients; small is very skewed.
        min_size: smallest number of training examples of a client.
        held_out: fraction of held-out examples, for data without a test part.
        rounds: of federated averaging.
        epochs: local epochs in a round.
        batch_size: examples in a step.
        learning_rate: of plain gradient descent.
        seed: of the split, the shards, the initial weights and the order of the examples.
        masked: whether the server gets the sum of the updates, and not one of them.
    """

    data: str
    num_clients: int = 8
    alpha: float = 0.5
    min_size: int = 20
    held_out: float = 0.2
    rounds: int
    epochs: int
    batch_size: int
    learning_rate: float
    seed: int = 0
    masked: bool = False

    @property
    def policy(self) -> str:
        """The policy.toml of each client; empty for none."""
        if not self.masked:
            return ""
        return f"[masking]\nrequired = true\nmin_group = {self.num_clients}\n"

    @property
    def run(self) -> dict[str, Any]:
        """The settings of the demo's run.toml."""
        return {
            "name": "demo",
            "rounds": self.rounds,
            "seed": self.seed,
            "evaluate": True,
            "cohort": {"goal": self.num_clients, "quorum": self.num_clients},
            "train": {
                "epochs": self.epochs,
                "batch_size": self.batch_size,
                "learning_rate": self.learning_rate,
            },
            **({"masking": self._masking} if self.masked else {}),
        }

    @property
    def _masking(self) -> dict[str, Any]:
        """One session of all clients; words of 64 bits have room for the usual bounds."""
        return {"group": self.num_clients, "min_group": self.num_clients, "sum_bits": 64}

    def __post_init__(self) -> None:
        for name in ("num_clients", "rounds", "epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise UsageError(f"Expected {name} >= 1, got {getattr(self, name)}.")
        if not self.learning_rate > 0:
            raise UsageError(f"Expected learning_rate > 0, got {self.learning_rate}.")


DIGITS = DemoSettings(
    data="handwritten digits", rounds=25, epochs=2, batch_size=16, learning_rate=0.2
)
MNIST = DemoSettings(
    data="MNIST", min_size=500, rounds=10, epochs=1, batch_size=32, learning_rate=0.1
)
