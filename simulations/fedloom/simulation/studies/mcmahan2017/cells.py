"""The experiments of the paper's settings, and the default choice of them.

Source: McMahan et al. 2017, https://arxiv.org/abs/1602.05629, section 3 and Algorithm 1: MNIST
split over 100 clients of 600 examples, shuffled (IID), or sorted by digit into 200 shards of 300
with two shards per client (pathological non-IID); m clients drawn uniformly each round, whose
models are averaged by examples; plain gradient descent without decay on the devices.

Choices that the paper does not state: initial weights (PyTorch's defaults, drawn from the
seed), pixels (0 to 1), the test (all 10,000 examples after every round), seeds (one, for split,
initial weights, cohorts and batches).
"""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from fedloom.protocol.errors import UsageError
from fedloom.simulation.studies.mcmahan2017.published import (
    CLIENTS,
    IID,
    NON_IID,
    PUBLISHED,
    TARGETS,
    CellSetting,
)
from fedloom.simulation.studies.mcmahan2017.search import RateSearch

PARTITIONS = {IID: "iid", NON_IID: "shards"}

# First guesses of the learning rate, as k of 10^(k/6), from small trials.
_STARTS = {
    ("2nn", IID, 10): -4,
    ("2nn", IID, None): -2,
    ("2nn", NON_IID, 10): -4,
    ("2nn", NON_IID, None): -2,
    ("cnn", IID, 10): -6,
    ("cnn", IID, 50): -4,
    ("cnn", IID, None): -4,
    ("cnn", NON_IID, 10): -8,
    ("cnn", NON_IID, 50): -6,
    ("cnn", NON_IID, None): -6,
}


def _all() -> tuple[CellSetting, ...]:
    return tuple(dict.fromkeys(published.setting for published in PUBLISHED))


ALL: tuple[CellSetting, ...] = _all()
"""Every setting of the two tables, once, in their order."""


def _2nn(split: str, fraction: float, batch: int | None) -> CellSetting:
    return CellSetting(model="2nn", split=split, fraction=fraction, epochs=1, batch=batch)


QUICK: tuple[CellSetting, ...] = (_2nn(IID, 0.0, 10), _2nn(IID, 0.1, 10), _2nn(NON_IID, 0.1, 10))
"""Minutes on two cores."""

USUAL: tuple[CellSetting, ...] = (
    *(
        _2nn(split, fraction, batch)
        for fraction in (0.0, 0.1, 1.0)
        for batch in (10, None)
        for split in (IID, NON_IID)
    ),
    CellSetting(model="cnn", split=IID, fraction=0.1, epochs=5, batch=10),
)
"""The committed results: hours on two cores."""


def chosen(patterns: Iterable[str], otherwise: Iterable[CellSetting]) -> tuple[CellSetting, ...]:
    """Settings by name.

    Args:
        patterns: names, with * for any text.
        otherwise: the settings without patterns.

    Raises:
        UsageError: a pattern matches no setting.
    """
    wanted: dict[CellSetting, None] = {}
    for pattern in patterns:
        found = [setting for setting in ALL if fnmatchcase(setting.name, pattern)]
        if not found:
            names = ", ".join(setting.name for setting in ALL)
            raise UsageError(
                f"No cell is called {pattern!r} (* for any text). Choose from {names}."
            )
        wanted |= dict.fromkeys(found)
    return tuple(wanted) or tuple(otherwise)


def cap_of(setting: CellSetting) -> int:
    """Rounds of a rate at most: twice the paper's, or 2,000 where the paper has a dash."""
    counts = [p.rounds for p in PUBLISHED if p.setting == setting and p.rounds is not None]
    return 2 * max(counts) if counts else 2000


def cell(
    setting: CellSetting, *, data: Mapping[str, Any], seed: int = 0, cap: int | None = None
) -> RateSearch:
    """The search of a setting.

    Args:
        setting: the paper's.
        data: more settings of the source, such as `folder`.
        seed: of all random numbers.
        cap: rounds of a rate at most; default: `cap_of`.
    """
    train = {"epochs": setting.epochs} | ({"batch_size": setting.batch} if setting.batch else {})
    return RateSearch(
        name=setting.name,
        settings={
            "name": setting.name,
            "seed": seed,
            "weighting": "examples",
            "data": {
                "source": "mnist",
                "clients": CLIENTS,
                "partition": {"name": PARTITIONS[setting.split]},
                **{name: value for name, value in data.items() if value},
            },
            "model": {"name": setting.model},
            "strategy": {"name": "fedavg"},
            "cohort": {"goal": setting.clients},
            "train": train,
            "test": {"every": 1},
        },
        target=TARGETS[setting.model],
        cap=cap if cap is not None else cap_of(setting),
        start=_STARTS[setting.model, setting.split, setting.batch],
    )
