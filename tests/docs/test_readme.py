"""The README: it says what the project is, and its two commands are those that CI runs."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")


def test_it_says_what_it_is_then_shows_the_picture_then_two_commands():
    """In this order, on one screen: `make demo` and `make test`."""
    first, _, _ = README.partition("## Watch it")
    order = [first.index(text) for text in ("trains one model", "It is for", "demo.png", "$ make")]
    assert order == sorted(order)
    assert re.findall(r"^\$ (make .*)$", first, re.MULTILINE) == ["make demo", "make test"]


def test_ci_runs_the_commands_of_the_readme():
    """`.ci/run` makes the targets, as the README types them."""
    ran = re.findall(r"^scripts/timed\.sh (.*)$", (ROOT / ".ci/run").read_text(), re.MULTILINE)
    targets = re.findall(r"[\w-]+", " ".join(ran))
    for name in re.findall(r"^\$ make (\w+)", README, re.MULTILINE):
        assert name in targets
