"""Compiled passes give what numpy's give, bit for bit."""

import os
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest

from fedloom.strategies.exact import compiled
from fedloom.strategies.exact.partial import (
    BLOCK,
    DELTA,
    Addend,
    Full,
    Partial,
    TensorSpec,
    exponent,
)
from fedloom.strategies.exact.words import WORD_BITS

pytest.importorskip("numba", reason="pip install 'fedloom[fast]'")
KEY = (DELTA, "w")
S = exponent(8.0, 1e6)


def reader(values):
    """What reads values block by block into one buffer, as a file is read."""
    left, buffer = iter(np.split(values, range(BLOCK, values.size, BLOCK))), np.empty_like(values)

    def read(count):
        np.copyto(buffer[:count], next(left))
        return buffer[:count]

    return read


def summed(updates, dtype, *, fused, together, monkeypatch):
    """The sum of updates (values, units), with the compiled fold or without, one by one or not."""
    monkeypatch.setattr(compiled, "is_faster", lambda _: fused)
    used = []
    fold = compiled.fold()
    if fused:
        monkeypatch.setattr(compiled, "fold", lambda: lambda *a: used.append(1) or fold(*a))
    size = updates[0][0].size
    partial = Partial({KEY: TensorSpec(shape=(size,), dtype=np.dtype(dtype))}, S)
    if together:
        addends = [Addend(units, reader(values)) for values, units in updates]
        partial.add_each(KEY, Full(), addends)
    else:
        for values, units in updates:
            partial.add_array(KEY, Full(), units, values)
    monkeypatch.undo()
    assert bool(used) == fused
    return partial


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("deep", [0.0, 1e-4, 0.5], ids=["two-words", "few-below", "many-below"])
@pytest.mark.parametrize("size", [1, 4095, 4097, 140_000])
def test_sums_have_the_same_bits(dtype, deep, size, monkeypatch):
    """Also of values that need a third word, and over blocks and carries."""
    rng = np.random.default_rng(size)
    updates = []
    for _ in range(6):
        values = rng.standard_normal(size) * 2.0 ** rng.integers(-30, 3, size)
        small = rng.random(size) < deep
        values[small] *= 2.0 ** rng.integers(-90, -30, int(small.sum()))
        weight = (
            int(rng.integers(1, 10_000)) << 82
            if rng.integers(2)
            else int(rng.integers(1 << 53)) << 50
        )
        updates.append((np.clip(values, -8, 8).astype(dtype), weight))
    numpy, fused, *together = (
        summed(updates, dtype, fused=fused, together=together, monkeypatch=monkeypatch)
        for together in (False, True)
        for fused in (False, True)
    )
    assert fused == numpy
    assert together == [numpy, numpy]
    found, wanted = fused.arrays()[0], numpy.arrays()[0]
    assert found.keys() == wanted.keys()
    assert all(np.array_equal(found[name], wanted[name]) for name in wanted)
    unit = Fraction(2) ** -(S - 12)
    for n in range(0, size, max(1, size // 7)):
        exact = sum(Fraction(float(v[n])) * Fraction(u, 1 << 82) for v, u in updates)
        words = (found[name][n] for name in sorted(found) if name.startswith("sums"))
        total = sum(int(w) * unit / 2 ** (WORD_BITS * k) for k, w in enumerate(words))
        assert abs(total - exact) <= Fraction(2) ** -230
        if not deep and dtype == "f4":
            assert total == exact


@pytest.mark.parametrize("size", [1, 70_000])
def test_settled_sums_and_means_have_the_same_bits(size, monkeypatch):
    """Of sums that were merged, with carries and signs, and of those of thousands of updates."""
    rng = np.random.default_rng(size)
    values = [(rng.standard_normal(size) * 3).clip(-8, 8).astype("f4") for _ in range(9)]

    def run(*, fused):
        monkeypatch.setattr(compiled, "is_faster", lambda _: fused)
        partials = []
        for start in range(3):
            partial = Partial({KEY: TensorSpec(shape=(size,), dtype=np.dtype("f4"))}, S)
            for _ in range(2000 if size == 1 else 1):  # beyond the slices after which words carry
                for each in values[start::3]:
                    partial.add_array(KEY, Full(), 7 << 82, each)
            partials.append(partial)
        total = partials[0] + partials[1] + partials[2]
        mean, covered = total.mean_block(KEY, size // 3, size)
        assert covered is True
        arrays = total.arrays()[0]
        return {name: array.tobytes() for name, array in arrays.items()}, mean

    (words, mean), (plain_words, plain_mean) = run(fused=True), run(fused=False)
    assert words == plain_words
    assert mean.tobytes() == plain_mean.tobytes()
    exact = sum(Fraction(float(v[-1])) for v in values) / 9
    assert abs(Fraction(float(mean[-1])) - exact) <= abs(exact) * Fraction(2) ** -50


def test_small_tensors_do_not_load_the_compiler(monkeypatch):
    """It takes longer to load than they take to add."""
    for name in ("fold", "settle", "floats"):
        monkeypatch.setattr(compiled, name, lambda: pytest.fail("was loaded"))
    partial = Partial({KEY: TensorSpec(shape=(1000,), dtype=np.dtype("f4"))}, S)
    partial.add_array(KEY, Full(), 1 << 82, np.ones(1000, np.float32))
    assert (partial.mean_block(KEY, 0, 1000)[0] == 1).all()


def test_without_the_package_numpy_adds(monkeypatch):
    """`fast` is an extra."""
    monkeypatch.setattr(compiled, "find_spec", lambda name: None)
    for function in (compiled._njit, compiled.fold, compiled.settle, compiled.floats):
        function.cache_clear()
        assert function() is None
    for function in (compiled._njit, compiled.fold, compiled.settle, compiled.floats):
        function.cache_clear()


def test_a_numba_that_does_not_fit_is_left_out(tmp_path):
    """Each release has a latest numpy, and raises with a later one."""
    (tmp_path / "numba.py").write_text('raise ImportError("Numba needs NumPy 2.0 or less")')
    code = """
import logging
logging.basicConfig()
from fedloom.simulation.kernels import fused
from fedloom.strategies.exact import compiled
assert compiled.fold() is compiled.settle() is fused._for_few() is None
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("numba is not used: Numba needs NumPy 2.0 or less") == 1
