"""Trained tensors and widths of a client: by patterns, seed and name."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloom.strategies import LocalTraining, PartialWork, RoundSettings

NAMES = [f"layer.{i}.{kind}" for i in range(10) for kind in ("weight", "bias", "lora_a", "lora_b")]


def test_clients_train_the_whole_model_by_default():
    """All tensors, without an early stop."""
    plain = PartialWork()
    assert (plain.special, plain.uneven) == ((), "")
    assert plain.tensors(NAMES, 7) == set(NAMES)
    assert plain.width("site-a") == 1.0


def test_patterns_choose_tensors():
    """As shell patterns; any match suffices."""
    chosen = PartialWork(only=["*lora*", "layer.9.*"]).tensors(NAMES, 0)
    assert chosen == {n for n in NAMES if "lora" in n or n.startswith("layer.9.")}
    with pytest.raises(ValueError, match=r"train\.only to match .*\['\*adapter\*'\], which match"):
        PartialWork(only=["*adapter*"]).tensors(NAMES, 0)


@given(share=st.floats(0.01, 1.0), seed=st.integers(0, 2**64 - 1))
def test_a_share_of_tensors_is_drawn_by_the_seed(share, seed):
    """A fixed number, at least one, in any order of the tensors."""
    departures = PartialWork(tensor_share=share)
    drawn = departures.tensors(NAMES, seed)
    assert len(drawn) == max(1, round(share * len(NAMES)))
    assert drawn == departures.tensors(reversed(NAMES), seed)


def test_every_tensor_is_drawn_equally_often():
    """Half of the tensors in each of 200 rounds: each in 100 of them, within four deviations."""
    departures = PartialWork(tensor_share=0.5)
    counts = Counter(name for seed in range(200) for name in departures.tensors(NAMES, seed))
    assert all(abs(counts[name] - 100) < 4 * 7.1 for name in NAMES)


def test_widths_are_drawn_by_name():
    """Of 1000 clients half have the width that is listed twice."""
    departures = PartialWork(widths=[1.0, 0.5, 0.25, 0.5])
    drawn = {f"client-{n}": departures.width(f"client-{n}") for n in range(1000)}
    assert drawn == {name: departures.width(name) for name in drawn}
    counts = Counter(drawn.values())
    assert abs(counts[0.5] - 500) < 4 * 15.8
    assert abs(counts[1.0] - 250) < 4 * 13.7


def test_a_run_passes_these_settings_to_its_rounds():
    """Unchanged, with lists as tuples."""
    settings = LocalTraining(
        steps=1, learning_rate=0.1, only=["a*"], tensor_share=0.5, widths=[0.5], patience=2
    )
    told = settings.at(3, 4)
    assert isinstance(told, RoundSettings)
    assert told.departures() == settings.departures()
    assert told.special == ("only", "tensor_share", "widths", "patience")
    assert (told.only, told.uneven) == (("a*",), "tensor_share")


BAD = [
    ({"clip_norm": 0}, ValueError, "clip_norm > 0"),
    ({"only": "*lora*"}, TypeError, "only as a list"),
    ({"only": [3]}, TypeError, "patterns of names"),
    ({"only": [""]}, ValueError, "patterns of 1 to 256 characters in only, got one of 0"),
    ({"only": ["*" * 257]}, ValueError, "got one of 257"),
    ({"only": ["*"] * 257}, ValueError, "at most 256 entries in only, got 257"),
    ({"widths": [0.5] * 257}, ValueError, "at most 256 entries in widths, got 257"),
    ({"tensor_share": 0}, ValueError, "tensor_share > 0"),
    ({"tensor_share": 1.5}, ValueError, "tensor_share above 0 and at most 1"),
    ({"widths": [0.5, 2]}, ValueError, "widths above 0 and at most 1"),
    ({"widths": 0.5}, TypeError, "widths as a list"),
    ({"patience": 0}, ValueError, "patience >= 1"),
    ({"time_budget_s": -1.0}, ValueError, "time_budget_s > 0"),
]


@pytest.mark.parametrize(("settings", "error", "message"), BAD)
def test_invalid_settings_are_refused(settings, error, message):
    with pytest.raises(error, match=message):
        PartialWork(**settings)
