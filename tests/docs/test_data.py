"""docs/data.md: its example prints the shown output, its tables are complete."""

import contextlib
import io
import re
import tomllib
from pathlib import Path

import pytest

from fedloom.simulation.data.transforms import TRANSFORMS, pipeline
from fedloom.simulation.partition import PARTITIONERS
from fedloom.simulation.sources import SOURCES
from fedloom.strategies.setting_checks import parameters

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text()


def _block(language):
    return re.search(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[1]


def _rows(heading):
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    cells = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| `")]
    names = r"`([a-z0-9-]+)`"
    for row in cells:
        if row[0].strip() not in ("`source`", "`name`"):
            yield (
                re.findall(names, row[0]),
                set(re.findall(r"`(\w+)`", re.sub(r"\(.*?\)", "", row[2]))),
            )


@pytest.mark.long
def test_the_example_prints_the_shown_output(tmp_path, monkeypatch):
    """It also writes its picture."""
    monkeypatch.chdir(tmp_path)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(_block("python"), "docs/data.md", "exec"), {})
    assert printed.getvalue() == _block("text")
    assert (tmp_path / "shards.png").read_bytes().startswith(b"\x89PNG")


def test_the_configuration_names_source_and_partition():
    """With their settings."""
    table = tomllib.loads(_block("toml"))["data"]
    partition = table.pop("partition")
    assert (
        table.keys() - {"source", "clients", "held_out"}
        <= parameters(SOURCES[table["source"]]).keys()
    )
    assert partition.keys() - {"name"} <= parameters(PARTITIONERS[partition["name"]]).keys()


def test_the_transforms_of_the_example_support_its_images():
    """They are built, and keep the shape of CIFAR's images."""
    block = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[1]
    table = tomllib.loads(block)["data"]
    assert table["source"] == "cifar10"
    made = pipeline(table["transform"])
    assert len(made.steps) == 3
    assert made.output_shape((3, 32, 32), "float32", ()) == (3, 32, 32)


@pytest.mark.parametrize(
    ("heading", "known"),
    [("Sources", SOURCES), ("Transforms", TRANSFORMS), ("Partitions", PARTITIONERS)],
)
def test_tables_name_everything_with_its_settings(heading, known):
    """And nothing that does not exist."""
    named = {}
    for names, settings in _rows(heading):
        for name in names:
            named[name] = settings
    assert named.keys() == known.keys()
    for name, settings in named.items():
        own = parameters(known[name]).keys() - {"seed"}
        assert settings - {"separator"} == own - {"separator"}, name
