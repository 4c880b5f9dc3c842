"""docs/masking.md: its settings print its lines and its refusal; its table is the benchmark's."""

import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from fedloom.protocol.errors import UsageError
from fedloom.server.planning.spec import parse
from fedloom.strategies.exact.grid import Grid
from fedloom.strategies.masking.noise import SessionNoise
from fedloom.strategies.masking.sessions import sum_lines
from fedloom.strategies.masking.settings import Masking

PAGE = (Path(__file__).parents[2] / "docs/masking.md").read_text("utf-8")
RUN, NOISY = (tomllib.loads(block.split("```")[0]) for block in PAGE.split("```toml\n")[1:])


def test_its_settings_print_its_lines():
    shown = [f"    {line}" for line in sum_lines(parse(RUN).sum_facts())]
    assert "\n".join(shown) in PAGE


def test_its_noise_prints_its_lines():
    pytest.importorskip("dp_accounting")
    shown = [f"    {line}" for line in sum_lines(parse(NOISY).sum_facts())]
    assert "\n".join(shown) in PAGE


def test_the_largest_model_of_sixteen_bits_is_the_page_s():
    noise = SessionNoise(clip=1.0, noise_multiplier=1.0, min_group=16, group=64)
    plain = Grid(bits=16, max_abs=1.0, weighting="uniform", max_weight=1.0, updates=264, session=64)
    grid = noise.on(plain)
    noise.check_size(grid, 262_144)
    with pytest.raises(ValueError, match="at most 262,144 values"):
        noise.check_size(grid, 262_145)
    assert "262,144 values" in PAGE


def test_the_refusal_of_the_default_bounds_is_the_page_s():
    loose = {n: v for n, v in RUN.items() if n not in ("max_abs", "weighting")}
    with pytest.raises(UsageError) as refused:
        parse(loose)
    assert str(refused.value) in " ".join(PAGE.split())


def test_it_has_every_setting_with_its_default():
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", PAGE, flags=re.MULTILINE))
    made = Masking()
    assert rows.keys() == {field.name for field in fields(Masking)}
    for name in ("group", "min_group", "sum_bits"):
        assert rows[name] == str(getattr(made, name))
        assert RUN["masking"][name] == getattr(made, name)
    assert float(rows["phase_s"]) == made.phase_s
    assert float(rows["upload_s"].split(",")[0]) == made.upload_limit_s
    assert float(rows["session_s"]) == made.session_s
    bounds = tomllib.loads(f"metrics = {rows['metrics'].strip('`')}")["metrics"]
    assert bounds == made.metrics


def test_steps_and_stated_errors_of_the_table_are_those_of_the_grid():
    bounds = {"fitting": (0.5, 1.0), "examples": (0.5, 1000.0), "loose": (8.0, 1000.0)}
    row = re.compile(r"^\| (fitting|examples|loose) \| (\d+) \| (\S+) \| (\S+) \|", re.MULTILINE)
    found = row.findall(PAGE)
    assert len(found) == 12
    for name, bits, step, stated in found:
        max_abs, max_weight = bounds[name]
        grid = Grid(
            bits=int(bits),
            max_abs=max_abs,
            weighting="examples",
            max_weight=max_weight,
            updates=264,
            session=64,
        )
        assert (f"{grid.step:.1e}", f"{grid.largest_error:.1e}") == (step, stated)
