"""docs/safety.md describes what the device does."""

import re
from pathlib import Path

from fedloom.client.agent.downloads import MAX_MISMATCHES
from fedloom.client.identity import leave
from fedloom.client.owner import journal
from fedloom.client.owner.policy import load, words

PAGE = (Path(__file__).parents[2] / "docs" / "safety.md").read_text(encoding="utf-8")


def test_the_policy_of_the_page_has_the_shown_description(tmp_path):
    """The example is parsed and described."""
    path = tmp_path / "policy.toml"
    path.write_text(PAGE.split("```toml\n")[1].split("```")[0])
    shown = PAGE.split("By policy.toml, this device:\n")[1].split("```")[0]
    assert re.findall(r"^  - (.*)$", shown, re.MULTILINE) == words(load(path))


def test_the_page_lists_the_events_of_the_journal():
    """All events, and no others."""
    rows = PAGE.split("| event | |")[1].split("\n\n")[0].splitlines()[2:]
    assert {e for row in rows for e in re.findall(r"`(\w+)`", row.split("|")[1])} == {
        *journal.EVENTS
    }


def test_the_page_has_the_numbers_of_the_code():
    """The attempts after wrong bytes, and the size limit of the journal."""
    assert f"after {['no', 'one', 'two', 'three'][MAX_MISMATCHES]} tries" in PAGE
    assert (journal.KEEP + 1, journal.MAX_BYTES) == (5, 1 << 20)
    assert "at most five files of\na megabyte" in PAGE
    assert leave.KEYS
