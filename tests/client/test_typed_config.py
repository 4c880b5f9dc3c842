"""A run's config as a dataclass: checked types, defaults, and unknown names refused."""

from dataclasses import dataclass, field
from typing import Literal

import pytest

from fedloom.protocol.errors import UsageError
from support.tasks import task


@dataclass(frozen=True)
class Settings:
    """Settings of a client's training code."""

    dropout: float
    layers: int = 2
    mode: Literal["fast", "exact"] = "fast"
    augment: bool = False
    note: str | None = None
    derived: int = field(default=7, init=False)

    def __post_init__(self):
        if not 0 <= self.dropout < 1:
            raise ValueError(f"Expected 0 <= dropout < 1, got {self.dropout}.")


def test_types_are_kept_and_whole_numbers_widen():
    """`dropout = 0` in TOML is an integer."""
    found = task(config={"dropout": 0, "mode": "exact", "augment": True}).config_as(Settings)
    assert found == Settings(0.0, mode="exact", augment=True)
    assert isinstance(found.dropout, float)
    assert found.layers == 2


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({}, "Missing setting config.dropout: set it to a number"),
        ({"dropout": "0.1"}, 'config.dropout as a number, got "0.1"'),
        ({"dropout": True}, "config.dropout as a number, got true"),
        ({"dropout": 0.1, "layers": 2.0}, "config.layers as a whole number, got 2.0"),
        ({"dropout": 0.1, "layers": True}, "config.layers as a whole number, got true"),
        ({"dropout": 0.1, "augment": 1}, "config.augment as true or false, got 1"),
        ({"dropout": 0.1, "mode": "slow"}, 'as "fast" or "exact", got "slow"'),
        ({"dropout": 0.1, "note": 3}, "config.note as text, got 3"),
        ({"dropout": 0.1, "layer": 3}, "Did you mean 'layers'"),
        ({"dropout": 0.1, "derived": 3}, "Unknown setting 'config.derived'"),
        ({"dropout": 1.5}, "Expected 0 <= dropout < 1"),
    ],
)
def test_an_invalid_config_is_named(config, sentence):
    with pytest.raises(UsageError, match=sentence):
        task(config=config).config_as(Settings)


def test_unsupported_dataclasses_raise_type_error():
    """A field that is a list, and a class that is not a dataclass."""

    @dataclass
    class Listed:
        sizes: list[int]

    with pytest.raises(TypeError, match="'sizes'"):
        task().config_as(Listed)
    with pytest.raises(TypeError, match="dataclass"):
        task().config_as(dict)
