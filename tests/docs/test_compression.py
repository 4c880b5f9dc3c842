"""docs/strategies/compression.md: its examples run, its tables are complete."""

import contextlib
import io
import re
import tomllib
from dataclasses import fields
from pathlib import Path

from fedloom.protocol.codecs import CODECS, codec
from fedloom.server.planning.spec import parse

PAGE = (Path(__file__).parents[2] / "docs" / "strategies" / "compression.md").read_text("utf-8")


def block(language):
    """The page's only block in this language."""
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return found


def test_the_example_prints_the_shown_output():
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block("python"), "compression.md", "exec"), {"__name__": "page"})
    assert printed.getvalue() == block("text")


def test_a_run_accepts_the_table():
    """Unchanged, as the page shows it."""
    table = tomllib.loads(block("toml"))
    spec = parse({"train": {"epochs": 1, "learning_rate": 0.1}, "cohort": {"goal": 2}, **table})
    assert spec.build_compression().codec == spec.build_broadcast() == codec("int8")


def test_it_names_every_codec_setting_and_default():
    """In the table of settings."""
    settings = PAGE.split("## Codecs and settings")[1].split("\n## ")[0]
    for name, build in CODECS.items():
        after = re.split(r"\n\| `", settings.split(f"| `{name}` ")[1])[0]
        for field in fields(build):
            assert f"| `{field.name}` |" in after
            value = getattr(
                codec(name, {"fraction": 0.1} if name.endswith("_k") else {}), field.name
            )
            if field.name != "fraction":
                assert f"| `{field.name}` | {str(value).lower()} |" in after
