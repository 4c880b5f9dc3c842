"""The example of the docs, followed step by step with real processes and a text made here."""

import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="needs transformers and peft: make hf")

from fedloom.client import load_file
from support import walk

PAGE = (Path(__file__).parents[3] / "docs" / "huggingface-example.md").read_text()


def play():
    """Speeches of words from a small vocabulary, another one for the roles on the devices."""
    drawn = random.Random(0)
    words = {
        **dict.fromkeys(("KING", "FOOL"), ("crown", "sword", "shall", "the", "of", "we")),
        **dict.fromkeys(("ROMEO", "MERCUTIO", "JULIET", "Nurse"), ("love", "night", "my", "thou")),
    }
    speeches = []
    for role, known in words.items():
        for _ in range(60):
            lines = [" ".join(drawn.choices(known, k=6)) for _ in range(4)]
            speeches.append("\n".join([f"{role}:", *lines]))
    drawn.shuffle(speeches)
    return "\n\n".join(speeches)


@pytest.mark.e2e
def test_the_example_works_as_the_page_has_it(tmp_path):
    """A server and two devices; the loss on what was held out falls, and adapters are made."""
    (tmp_path / "tinyshakespeare.txt").write_text(play())
    printed = {}
    with walk.Walk(tmp_path, walk.free_ports(["7443", "7444"])) as walking:
        for step in walk.steps(PAGE):
            printed[getattr(step, "line", step)] = walking.take(step)
    losses = [
        float(row.rpartition("loss")[2])
        for row in printed["fedloom run status --watch"].splitlines()
        if re.match(r" +\d+ +(train|evaluate) ", row)
    ]
    assert len(losses) == 7
    assert losses[-1] < losses[0] - 0.1
    made, start = (
        load_file(tmp_path / name)
        for name in ("adapter/adapter_model.safetensors", "initial.safetensors")
    )
    assert made.keys() == start.keys()
    assert all((made[name] != start[name]).any() for name in made)


def test_without_a_play_the_example_says_what_to_do(tmp_path):
    for step in walk.steps(PAGE):
        if isinstance(step, walk.File):
            (tmp_path / step.name).write_text(step.text)
    asked = [sys.executable, "-c", "from play import windows; windows(bool)"]
    done = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"Expected a play in {tmp_path}/tinyshakespeare.txt. Set PLAY" in done.stderr
