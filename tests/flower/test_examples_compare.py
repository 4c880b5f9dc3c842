"""The comparison of two records of an example, and the table of it."""

import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "flower_examples"


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """The command's folder on the path, as its processes have it."""
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.syspath_prepend(FOLDER / "hooks")
    yield
    for name in ("compare", "table", "examples", "prepare", "recorded", "fixed_seeds"):
        sys.modules.pop(name, None)


def records(tmp_path, a, b):
    """Two files."""
    np.savez(tmp_path / "a.npz", **a)
    np.savez(tmp_path / "b.npz", **b)
    return tmp_path / "a.npz", tmp_path / "b.npz"


def test_the_largest_difference_of_all_numbers_is_found(tmp_path):
    """In whatever value it is, and of integers that would wrap."""
    from compare import compare

    a = {"x": np.zeros(3), "n": np.array([3], np.uint8), "t": np.array("same")}
    b = {"x": np.array([0, 0.5, 0]), "n": np.array([5], np.uint8), "t": np.array("same")}
    assert compare(*records(tmp_path, a, b)) == (2.0, "n", 4, [])
    assert compare(*records(tmp_path, a, a)) == (0.0, "", 4, [])


def test_a_nan_is_equal_to_another_alone(tmp_path):
    """In one record, it is named, and the other differences are found."""
    from compare import compare

    a = {"x": np.array([np.nan, 1.0]), "y": np.zeros(1)}
    b = {"x": np.array([2.0, 1.0]), "y": np.ones(1)}
    assert compare(*records(tmp_path, a, b)) == (1.0, "y", 3, ["x: a NaN in one"])
    assert compare(*records(tmp_path, a, a)) == (0.0, "", 3, [])


@pytest.mark.parametrize(
    "other", [{}, {"x": np.zeros(2), "y": np.zeros(1)}, {"x": np.zeros(3)}, {"x": np.array("1")}]
)
def test_what_has_no_difference_is_named(tmp_path, other):
    """Values of one side alone, other shapes, other texts."""
    from compare import compare

    a = {"x": np.array("2") if other.get("x", np.zeros(1)).dtype.kind == "U" else np.zeros(2)}
    assert len(compare(*records(tmp_path, a, other))[3]) == 1


def test_a_record_holds_the_numbers_of_json(monkeypatch):
    """Bytes and arrays of bytes with JSON become its numbers; texts in it may differ."""
    import recorded

    monkeypatch.setattr(recorded, "found", {})
    recorded.put("a", b'{"b": [1, "2.5", true], "a": {"time": "Monday"}, "c": -3}')
    recorded.put("b", np.frombuffer(b"[4]", np.uint8))
    recorded.put("c", {"d": [1.5, "text", None], "e": b"\x00\xff"})
    assert {name: value.tolist() for name, value in recorded.found.items()} == {
        "a": [1, 2.5, -3], "b": [4], "c/d/0": 1.5, "c/d/1": "text", "c/e": [0, 255],
    }  # fmt: skip


def test_the_table_has_a_row_for_every_app(tmp_path, monkeypatch):
    """Between the marks of a page, whose rest stays; in the order of names."""
    import table

    monkeypatch.setattr(table, "versions", lambda: "flwr 0")
    (tmp_path / "framework").mkdir()
    (tmp_path / "framework" / "pyproject.toml").write_text('[project]\nversion = "1.28.0"\n')
    page = tmp_path / "page.md"
    page.write_text(f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n")
    rows = [
        {"name": "b", "runs": False, "note": "Refused: a | b"},
        {"name": "a", "runs": True, "difference": 3e-8, "numbers": 1200, "note": "Small"},
    ]
    table.write(page, rows, tmp_path)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "1 of 2 examples run; the largest difference of all is 3.0e-08." in text
    assert (
        "| a | yes | 3.0e-08 | 1,200 | 3 nodes | Small |\n| b | no | | | | Refused: a \\| b |"
        in text
    )
    table.write(page, rows, tmp_path)
    assert page.read_text() == text
