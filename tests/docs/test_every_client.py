"""Every client in README and docs passes `client test` and `client doctor`, unchanged.

Blocks are found by what they define, so that a new one is tested, too. A block that uses names that
it does not define is a fragment; their number is stated for each page.
"""

import ast
import builtins
import json
import re
import sys
from collections import Counter
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from fedloom.cli.main import main
from fedloom.client import save_file
from fedloom.client.testing import checks as the_checks
from fedloom.client.trees import empty

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

FRAGMENTS = {"docs/evaluation.md": 1, "docs/huggingface.md": 1, "docs/torch.md": 4}
"""Pages with blocks that show a part of a client's code."""

LINE = {"weight": np.zeros((1, 2), np.float32), "bias": np.zeros(1, np.float32)}
READER = {"head": np.zeros(3), "embedding": np.zeros((30, 4)), "hidden": np.eye(2)}
TREES = "class_of:TreeClient"
MODELS = {
    "Line": lambda: LINE,
    "Reader": lambda: READER,
    TREES: lambda: empty(["client-1", "client"], rounds=12, capacity_bytes=16384),
}
"""Initial models of clients that have none; their pages make them, too."""
ENVIRONMENT = {"HOSPITAL": "city", "VISITS": "visits.csv"}
"""Variables that pages set before their clients run."""
VISITS = "age,score,outcome\n" + "".join(
    f"{age},{age % 10},{'ward' if age % 10 > 4 else 'home'}\n" for age in range(20, 90)
)
STANDS_FOR_TRAINING = ("Reader",)
"""Clients in which one line stands for the training, as they say: settings change nothing."""
RUNS = {
    "Reader": 'weighting = "client"\ntrain = {epochs = 1, learning_rate = 0.1}',
    TREES: (
        "train = {steps = 1, learning_rate = 0.3}\nevaluate = false\n"
        'config = {clients = "client-1,client"}'
    ),
}
"""Settings of the run that a client is made for; the others get the default."""


@dataclass(frozen=True)
class Block:
    """A block of Python that defines a client.

    Attributes:
        page: its path.
        text: of the block.
        name: of the client in it.
        kind: of the client: its class, if the block tells.
        fragment: whether it uses names that it does not define.
    """

    page: str
    text: str
    name: str
    kind: str
    fragment: bool

    def __str__(self):
        return f"{self.page}-{self.kind}-{len(self.text)}"


def _of_client(tree):
    """The name of the client that a module makes, and its class; None if it makes none."""
    kinds = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    mine = next((k.name for k in kinds if "Client" in map(ast.unparse, k.bases)), None)
    for node in tree.body:
        if isinstance(node, ast.Assign) and [ast.unparse(t) for t in node.targets] == ["client"]:
            called = isinstance(node.value, ast.Call) and ast.unparse(node.value.func)
            return "client", mine or f"class_of:{called}"
    return mine and (mine, mine)


def _undefined(tree):
    """Names that a module uses and nothing in it defines."""
    used, known = set(), set(dir(builtins)) | {"__name__", "__file__"}
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                used.add(name)
            case ast.Name(id=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                known.add(name)
            case ast.arg(arg=name):
                known.add(name)
            case ast.alias(name=name, asname=asname):
                known.add(asname or name.partition(".")[0])
    return used - known


def _blocks():
    for page in PAGES:
        for text in re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL):
            tree = ast.parse(text)
            if found := _of_client(tree):
                place = page.relative_to(ROOT).as_posix()
                yield Block(place, text, *found, fragment=bool(_undefined(tree)))


BLOCKS = list(_blocks())
WHOLE = [block for block in BLOCKS if not block.fragment]


def test_fragments_are_counted():
    """A new page cannot leave its client untested by an undefined name."""
    assert Counter(block.page for block in BLOCKS if block.fragment) == FRAGMENTS
    assert len(WHOLE) >= 14


def test_undefined_names_are_found():
    """A parameter, an import and a loop's name are defined."""
    text = "import a.b\nfor c in a.b: pass\ndef d(e, *f): return [g for g in e] + [c, f]\nd(h)"
    assert _undefined(ast.parse(text)) == {"h"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder to run in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(the_checks, "STOP_AFTER_S", 0.05)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    Path("visits.csv").write_text(VISITS)


def _missing(text):
    names = set(re.findall(r"^(?:from|import) (\w+)", text, re.MULTILINE))
    return sorted(name for name in names if find_spec(name) is None)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("block", WHOLE, ids=str)
def test_a_client_of_the_docs_passes_both_commands(monkeypatch, block):
    """With the model, the files and the settings that its page names."""
    if missing := _missing(block.text):
        pytest.skip(f"{missing[0]} is not installed")
    if "digits.pt" in block.text:
        torch = pytest.importorskip("torch")
        torch.save((torch.randn(64, 784), torch.arange(64) % 10), "digits.pt")
    if "VISITS" in block.text:  # the page makes a folder of examples
        page = (ROOT / block.page).read_text("utf-8")
        (making,) = re.findall(r"<!-- file: make_data.py -->\n```python\n(.*?)```", page, re.DOTALL)
        exec(making, {})
        monkeypatch.setenv("VISITS", "north")
    stem = f"client_of_the_docs_{WHOLE.index(block)}"
    monkeypatch.setitem(sys.modules, stem, None)
    Path(f"{stem}.py").write_text(block.text)
    code, given = f"{stem}.py:{block.name}", []
    if make := MODELS.get(block.kind):
        save_file(make(), "model.safetensors")
        given += ["--model", "model.safetensors"]
    if run := RUNS.get(block.kind):
        Path("run.toml").write_text(run)
        given += ["--run", "run.toml"]
    ignored = ("epochs", "learning_rate") if block.kind in STANDS_FOR_TRAINING else ()
    extra = [word for check in ignored for word in ("--ignore", check)]
    tested = CliRunner().invoke(main, ["client", "test", code, *given, *extra])
    assert tested.exit_code == 0, tested.output
    examined = CliRunner().invoke(main, ["client", "doctor", "--json", "--code", code, *given])
    found = {each["check"]: each for each in json.loads(examined.stdout)["findings"]}["code"]
    assert found["level"] == "ok", found
    assert "a trial epoch made an update" in found["said"]
