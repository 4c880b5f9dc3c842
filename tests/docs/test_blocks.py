"""Every block of code in README and docs is run by a test, or says why it is not.

A block is run if it is

- in a walk-through, which the page's test types (`support.walk`),
- a diagram, which has been drawn for the site,
- TOML, which a reader of settings accepts here,
- Python that runs here, with the names that `PRELUDES` gives it,
- of a language that the page's own test runs or compares (`RUN_BY`).

Otherwise `<!-- not run: REASON -->` stands before it, or `<!-- not run on this page: LANGUAGES:
REASON -->` anywhere on the page. In any case its `fedloom` commands and their options exist.
"""

import hashlib
import re
import shlex
import tomllib
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from fedloom.cli.main import main
from fedloom.client.config import ClientConfig
from fedloom.client.owner.policy import Policy
from fedloom.protocol import settings
from fedloom.protocol.errors import FedloomError
from fedloom.server.config import ServerConfig
from fedloom.server.planning.spec import parse
from support import walk

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

WALKED = {
    "docs/five-minutes.md": "tests/docs/test_five_minutes.py",
    "docs/huggingface-example.md": "tests/client/hf/test_example.py",
    "docs/new.md": "tests/docs/test_new.py",
    "docs/tutorials/hospitals.md": "tests/docs/test_tutorials.py",
    "docs/tutorials/thousand-clients.md": "tests/docs/test_tutorials.py",
    "docs/tutorials/three-laptops.md": "tests/docs/test_tutorials.py",
}
"""Pages with a walk-through, and the test that types it."""

CLIENTS = "tests/docs/test_every_client.py"
RUN_BY = {
    "docs/client.md": {},
    "docs/data.md": {("python", "text", "toml"): "tests/docs/test_data.py"},
    "docs/devices.md": {("python", "toml"): "tests/simulation/clock/test_devices.py"},
    "docs/five-minutes.md": {("python",): "tests/docs/test_five_minutes.py"},
    "docs/from-nvflare.md": {("python",): CLIENTS},
    "docs/raspberry-pi.md": {("python", "toml"): "tests/docs/test_deployment.py"},
    "docs/rounds.md": {("python",): "tests/server/engine/test_documentation.py"},
    "docs/safety.md": {("toml",): "tests/docs/test_safety.py"},
    "docs/simulation.md": {("python",): "tests/docs/test_simulation.py"},
    "docs/sites.md": {("python",): CLIENTS},
    "docs/sweeps.md": {("toml", "python"): "tests/simulation/sweep/test_documentation.py"},
    "docs/writing-clients.md": {("python", "console"): "tests/docs/test_writing_clients.py"},
    "docs/strategies/README.md": {("python",): "tests/docs/test_strategies.py"},
    "docs/strategies/adapters.md": {("toml",): "tests/docs/test_adapters.py"},
    "docs/strategies/trees.md": {("python", "toml"): "tests/docs/test_trees.py"},
} | {
    f"docs/strategies/{name}.md": {
        ("python", "text", "toml"): f"tests/docs/test_{name.replace('-', '_')}.py"
    }
    for name in (
        "asynchronous", "client-rules", "compression", "metrics", "optimizers", "partial-work",
        "personalisation", "privacy", "robust", "selection",
    )
}  # fmt: skip
"""Page → languages → the test that runs or compares all of its blocks in them."""

_TORCH = """
import torch
from fedloom.client.torch import TorchClient
x, y = torch.randn(20, 4), torch.randint(2, (20,))
vx, vy, loss = x, y, torch.nn.functional.cross_entropy
model = torch.nn.Linear(4, 2)
layer = torch.nn.ModuleDict({"query": torch.nn.Linear(8, 8), "value": torch.nn.Linear(8, 8)})
pretrained = torch.nn.ModuleDict({"layer": layer, "head": torch.nn.Linear(4, 2)})
loader = torch.utils.data.DataLoader([{"x": a, "labels": b} for a, b in zip(x, y)], batch_size=5)
"""
PRELUDES = {"docs/torch.md": _TORCH, "docs/evaluation.md": _TORCH}
"""Names that the Python of a page uses and does not define."""

_FENCE = re.compile(
    r"(?:^<!-- (?P<mark>[^\n]*?) -->\n)?^(?P<margin> *)```(?P<language>\w*)\n(?P<body>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
_ON_PAGE = re.compile(r"<!-- not run on this page: ([\w, ]+): (.+?) -->")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page; `walked` if it is in a walk-through."""

    page: str
    line: int
    language: str
    body: str
    mark: str
    walked: bool

    def __str__(self):
        return f"{self.page}:{self.line}"


def _blocks():
    for path in PAGES:
        text, page = path.read_text("utf-8"), path.relative_to(ROOT).as_posix()
        begin, end = text.find(walk.BEGIN), text.find(walk.END)
        for found in _FENCE.finditer(text):
            yield Block(
                page=page,
                line=text.count("\n", 0, found.start("margin")) + 1,
                language=found["language"] or "text",
                body=found["body"],
                mark=found["mark"] or "",
                walked=-1 < begin < found.start("margin") < end,
            )


BLOCKS = list(_blocks())


def test_all_fences_are_found():
    """Otherwise a block could hide from the tests below."""
    for path in PAGES:
        fences = re.findall(r"^ *```", path.read_text("utf-8"), re.MULTILINE)
        page = path.relative_to(ROOT).as_posix()
        assert len(fences) == 2 * sum(block.page == page for block in BLOCKS), page


def _reason(block):
    """Why a block is not run; None if nothing says so."""
    if block.mark.startswith("not run: "):
        return block.mark.removeprefix("not run: ")
    for languages, reason in _ON_PAGE.findall((ROOT / block.page).read_text("utf-8")):
        if block.language in languages.replace(" ", "").split(","):
            return reason
    return None


def _is_drawn(block):
    name = hashlib.sha256(block.body.encode()).hexdigest()[:12]
    folder = ROOT / "docs" / "images" / "diagrams"
    return all((folder / f"{name}-{theme}.svg").exists() for theme in ("light", "dark"))


def _is_accepted(block):
    """Whether a reader of settings accepts TOML as it stands, or with what else it needs."""
    values = tomllib.loads(block.body)
    needed = {"train": {"epochs": 1, "learning_rate": 0.1}, "cohort": {"goal": 2}}
    readers = [
        lambda: settings.from_table(ClientConfig, values),
        lambda: settings.from_table(ServerConfig, values),
        lambda: settings.from_table(Policy, values),
        lambda: parse({**needed, **values}),
    ]
    for read in readers:
        try:
            read()
        except FedloomError:
            continue
        return True
    return False


def _is_run(block):
    if block.walked:
        return block.page in WALKED
    if block.language == "mermaid":
        return _is_drawn(block)
    if any(block.language in languages for languages in RUN_BY.get(block.page, {})):
        return True
    if block.language == "toml":
        return _is_accepted(block)
    return block.language == "python" and block.page in PRELUDES


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_block_is_run_or_says_why_not(block):
    """A reason is a sentence that a reader of the source understands."""
    if _is_run(block):
        assert not block.mark.startswith("not run"), "it is run: take the mark away"
        return
    reason = _reason(block)
    assert reason is not None, "run it by a test, or put <!-- not run: REASON --> before it"
    assert len(reason.split()) >= 4


def test_the_tests_that_run_blocks_know_their_pages():
    """They exist, name the page, and read what it is said that they run."""
    for page, rows in RUN_BY.items():
        for languages, test in rows.items():
            text = (ROOT / test).read_text("utf-8")
            assert test == CLIENTS or Path(page).name in text, test
            assert any(language in text for language in languages), test
    for page, test in WALKED.items():
        text = (ROOT / test).read_text("utf-8")
        assert "walk.steps" in text
        assert Path(page).stem in text


@pytest.mark.parametrize("page", PRELUDES)
def test_python_that_needs_names_runs(page):
    """Each block alone, after the prelude."""
    pytest.importorskip("torch")
    blocks = [b for b in BLOCKS if b.page == page and b.language == "python"]
    assert blocks
    for block in blocks:
        exec(compile(PRELUDES[page] + block.body, str(block), "exec"), {})


def _commands(block):
    """The `fedloom` commands that a reader types."""
    text = block.body.replace("\\\n", " ")
    for line in text.splitlines():
        typed = re.match(r"^\s*\$? ?(?:\w+=\S+ |sudo |\S+/bin/)*(fedloom .*)", line)
        if typed and (line.lstrip().startswith("$") or block.language in ("sh", "bash")):
            first = re.split(r" && | \| | > | >> ", typed[1])[0]
            yield shlex.split(first.rstrip(" &"), comments=True)[1:]


@pytest.mark.parametrize("block", [b for b in BLOCKS if list(_commands(b))], ids=str)
def test_commands_and_options_exist(block):
    """Also where they are not run."""
    for words in _commands(block):
        command, context = main, click.Context(main)
        while isinstance(command, click.Group) and words and not words[0].startswith("-"):
            name = words.pop(0)
            command = command.get_command(context, name)
            assert command is not None, f"there is no command {name!r}"
        options = {flag for p in command.params for flag in (*p.opts, *p.secondary_opts)}
        given = {word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        assert given <= options | {"--help", "-h"}, command.name
