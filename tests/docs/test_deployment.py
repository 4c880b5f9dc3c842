"""The deployment pages: their commands exist, and their examples work."""

import re
import shlex
import tomllib
from pathlib import Path

import click
import pytest

from fedloom.cli.main import main
from fedloom.client.config import load
from fedloom.client.testing import check

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / "docs" / name for name in ("raspberry-pi.md", "deployment.md", "client.md")),
    *(ROOT / "deploy").rglob("*.yaml"),
    *(ROOT / "deploy").rglob("*.service"),
    *(ROOT / "deploy").rglob("*.Containerfile"),
]
PI = (ROOT / "docs" / "raspberry-pi.md").read_text()


def commands(path):
    """Every `fedloom` command in a page's code blocks."""
    text = re.sub(r"\\\n[#\s]*", " ", path.read_text())
    for line in text.splitlines():
        typed = re.match(
            r"^(?:# ? ?)?\s*\$? ?(?:sudo |\S+/bin/)*(fedloom (?:[a-z-]+ )*[^|<>]*)", line
        )
        if typed and (line.startswith(("$", "#  ")) or "ExecStart" in line):
            yield shlex.split(typed[1].split(" && ")[0].rstrip(" &"), comments=True)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_commands_and_their_options_exist(path):
    for _, *words in commands(path):
        command, context = main, click.Context(main)
        while isinstance(command, click.Group) and words and not words[0].startswith("-"):
            name = words.pop(0)
            command = command.get_command(context, name)
            assert command is not None, f"{path.name}: there is no command {name!r}"
        options = {flag for p in command.params for flag in (*p.opts, *p.secondary_opts)}
        options |= {"--help", "-h"}
        given = {word.split("=")[0] for word in words if word.startswith("-")}
        assert given <= options, f"{path.name}: {command.name} has no {given - options}"


def test_the_pages_have_commands():
    """Otherwise the test above would check nothing."""
    assert sum(1 for _ in commands(PAGES[0])) >= 8
    assert sum(1 for _ in commands(PAGES[1])) >= 7


def test_the_raspberry_pi_client_passes_its_check(tmp_path):
    """The check is the one that the page recommends."""
    (code,) = re.findall(r"```python\n(.*?)```", PI, re.DOTALL)
    names = {}
    exec(compile(code, "my_client.py", "exec"), names)
    assert [f for f in check(names["client"](), ignore=["copies"]) if f.weight == "fault"] == []


def test_the_raspberry_pi_settings_are_valid(tmp_path):
    """A client.toml accepts them unchanged."""
    (text,) = re.findall(r"```toml\n(.*?)```", PI, re.DOTALL)
    assert tomllib.loads(text)
    path = tmp_path / "client.toml"
    path.write_text('server = "fl.example.org:7443"\nstate_dir = "state"\n' + text)
    assert load(path).budgets.threads == 2


def test_containers_name_the_version():
    """Manifests name the version that they are released with."""
    from fedloom.protocol.version import __version__

    for path in (ROOT / "deploy" / "kubernetes").glob("*.yaml"):
        images = re.findall(r"image: (?:&\S+ )?(fedloom-\S+)", path.read_text())
        assert images or path.name == "replicas-autoscaling.yaml"
        assert all(image.endswith(f":{__version__}") for image in images)
