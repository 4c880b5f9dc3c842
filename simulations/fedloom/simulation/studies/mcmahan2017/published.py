"""The paper's results: rounds to a target on MNIST over 100 clients, as printed.

Source: McMahan et al. 2017, https://arxiv.org/abs/1602.05629 (AISTATS version), Table 1 (both
halves) and Table 2 (upper half; the lower is an LSTM on Shakespeare). The counts were compared with
a transcription of both tables published by J. A. Lorencio Abril in a review of the paper. None
stands for a dash: the target was not reached in the time allowed; Table 1's caption counts five.
The speedups printed beside the counts are the baseline's count over the row's and are derived here;
a test compares them with those printed.

Legend, after the paper: C fraction of clients per round (0: one client), E local epochs, B local
batch (None: all of a client's examples, ∞ in the paper).

The two tables have four settings in common (CNN, C = 0.1, E = 5), from separate runs: 339 and 179
rounds (IID, B = ∞), 18 and 20 (IID, B = 10), 1100 and 1000 (non-IID, B = ∞), 206 and 229 (non-IID,
B = 10). These differences show the noise of the paper's own results.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

IID, NON_IID = "iid", "noniid"
CLIENTS = 100
TARGETS = {"2nn": 0.97, "cnn": 0.99}
"""Accuracy on the test examples; Table 1's caption and Table 2's heading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellSetting:
    """The setting of a cell.

    Attributes:
        model: `2nn` or `cnn`.
        split: `iid`, or `noniid` for two shards per client.
        fraction: C.
        epochs: E.
        batch: B; None for all of a client's examples at once.
    """

    model: str
    split: str
    fraction: float
    epochs: int
    batch: int | None

    @property
    def clients(self) -> int:
        """The paper's m: clients per round."""
        return max(1, round(self.fraction * CLIENTS))

    @property
    def name(self) -> str:
        """A short name, also of its folder."""
        batch = "inf" if self.batch is None else self.batch
        return f"{self.model}-{self.split}-m{self.clients}-e{self.epochs}-b{batch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A result of the paper.

    Attributes:
        table: 1 or 2.
        setting: of the result.
        rounds: to the target; None if it was not reached.
        baseline: the setting that the table's speedups are relative to.
        algorithm: as named in Table 2.
    """

    table: int
    setting: CellSetting
    rounds: int | None
    baseline: CellSetting
    algorithm: str = "FedAvg"


# Table 1: C, then rounds for (IID, B = ∞), (IID, B = 10), (non-IID, B = ∞), (non-IID, B = 10).
_TABLE_1_2NN = (  # E = 1, to 97 %
    (0.0, 1455, 316, 4278, 3275),
    (0.1, 1474, 87, 1796, 664),
    (0.2, 1658, 77, 1528, 619),
    (0.5, None, 75, None, 443),
    (1.0, None, 70, None, 380),
)
_TABLE_1_CNN = (  # E = 5, to 99 %
    (0.0, 387, 50, 1181, 956),
    (0.1, 339, 18, 1100, 206),
    (0.2, 337, 18, 978, 200),
    (0.5, 164, 18, 1067, 261),
    (1.0, 246, 16, None, 97),
)
# Table 2, CNN, C = 0.1, to 99 %: E, B, then rounds IID and non-IID; the first row is FedSGD.
_TABLE_2_CNN = (
    (1, None, 626, 483),
    (5, None, 179, 1000),
    (1, 50, 65, 600),
    (20, None, 234, 672),
    (1, 10, 34, 350),
    (5, 50, 29, 334),
    (20, 50, 32, 426),
    (5, 10, 20, 229),
    (20, 10, 18, 173),
)


def table_1() -> Iterator[Published]:
    """Table 1, in the paper's order: the model, C, the split, B."""
    for model, epochs, rows in (("2nn", 1, _TABLE_1_2NN), ("cnn", 5, _TABLE_1_CNN)):
        for fraction, *counts in rows:
            columns = product((IID, NON_IID), (None, 10))
            for (split, batch), rounds in zip(columns, counts, strict=True):
                setting = CellSetting(
                    model=model, split=split, fraction=fraction, epochs=epochs, batch=batch
                )
                yield Published(
                    table=1, setting=setting, rounds=rounds, baseline=replace(setting, fraction=0.0)
                )


def table_2() -> Iterator[Published]:
    """Table 2's upper half, in the paper's order: the algorithm, the split."""
    for epochs, batch, *counts in _TABLE_2_CNN:
        for split, rounds in zip((IID, NON_IID), counts, strict=True):
            setting = CellSetting(
                model="cnn", split=split, fraction=0.1, epochs=epochs, batch=batch
            )
            baseline = replace(setting, epochs=1, batch=None)
            yield Published(
                table=2,
                setting=setting,
                rounds=rounds,
                baseline=baseline,
                algorithm="FedSGD" if setting == baseline else "FedAvg",
            )


PUBLISHED: tuple[Published, ...] = (*table_1(), *table_2())
