"""docs/strategies/README.md: its example is a strategy, its tables name every part of a run."""

import re
from dataclasses import fields
from pathlib import Path

import numpy as np

from fedloom.server.planning.spec import RunSpec
from fedloom.strategies import DELTA, STRATEGIES, Full, Partial, TensorSpec, exponent, strategy

PAGE = (Path(__file__).parents[2] / "docs" / "strategies" / "README.md").read_text("utf-8")


def test_the_example_is_a_strategy(monkeypatch):
    """Each value steps by the rate in the direction of its mean's sign; a mean of 0 is no step."""
    monkeypatch.setitem(STRATEGIES, "sign_sgd", None)  # restored afterwards
    names = {"__name__": "page"}
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(code, "strategies/README.md", "exec"), names)
    algorithm = strategy("sign_sgd", {"server_learning_rate": 0.5})
    assert isinstance(algorithm, names["SignSGD"])
    model = {"w": np.array([1.0, 1.0, 1.0])}
    spec = TensorSpec(shape=(3,), dtype=np.dtype(np.float64))
    partial = Partial({(DELTA, "w"): spec}, exponent(1.0, 1.0))
    partial.add_array((DELTA, "w"), Full(), 1, np.array([0.3, -0.001, 0.0]))
    new, _ = algorithm.finish(algorithm.init(model), model, partial)
    np.testing.assert_array_equal(new["w"], [1.5, 0.5, 1.0])


def test_it_names_every_table_of_a_run():
    """Every table that selects a part."""
    parts = {
        field.name for field in fields(RunSpec) if str(field.type).startswith("collections.abc.Map")
    }
    assert len(parts) > 8
    for part in parts - {"config"}:
        assert f"`[{part}]`" in PAGE, part
