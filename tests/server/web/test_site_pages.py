"""The sites of a round, and the devices in their sums, as operators see them."""

import re

import pytest
from click.testing import CliRunner

from fedloom.cli.main import main
from fedloom.protocol.updates.site_members import member
from fedloom.server.ledger.updates import AcceptedUpdate
from fedloom.server.planning.spec import parse
from support.door import Door, _Connection

SPEC = {
    "rounds": 1,
    "sites": True,
    "cohort": {"goal": 20, "quorum": 5},
    "train": {"epochs": 1, "batch_size": 4, "learning_rate": 0.1},
}
TREE = [member("ward<1>", 2, [member("six"), member("seven")]), member("lab", 9)]


@pytest.fixture
def door(tmp_path):
    """A round of three sites, whose first and second have sent their sums."""
    with Door(tmp_path / "state") as door:
        ledger = door.contexts.ledger
        row = {"id": "sums-1", "name": "sums", "spec": parse(SPEC).as_dict(), "state": "paused"}
        ledger.add_run({**row, "reason": "", "model": "m"}, 100)
        times = {"opened_at": 1.0, "deadline_at": 60.0}
        opened = {"run": "sums-1", "number": 1, "kind": "train", "model_in": "m", **times}
        places = {"north": 50, "south": 5, "west": 7}
        ledger.open_round(opened, list(places), places=places)
        for site, members, devices in (("north", TREE, 11), ("south", None, 4)):
            update = AcceptedUpdate(
                run="sums-1", round=1, client=site, identity=site, file="", size_bytes=100,
                weight=1.0, norm=0.0, devices=devices, members=members,
            )  # fmt: skip
            assert ledger.accept(update, 100)
        yield door


def test_a_round_shows_the_devices_of_each_site(door):
    """As many as their sums have, of their places; by name where a site names them."""
    connection = _Connection(door.directory / "control.sock")
    connection.request("GET", "/runs/sums-1/rounds/1")
    html = connection.getresponse().read().decode()
    connection.close()
    rows = dict(re.findall(r'<tr id="member-(\w+)">(.*?)</tr>', html, re.DOTALL))
    shown = {name: re.sub(r"<[^>]+>", " ", row).split() for name, row in rows.items()}
    assert "11 of 50 ward&lt;1&gt; 2 six seven lab 9 devices, not named" in " ".join(shown["north"])
    assert "4 of 5" in " ".join(shown["south"])
    assert "0 of 7" in " ".join(shown["west"])


def test_the_command_lists_them_too(door):
    """With a line for the names of each site that tells them."""
    command = ["round", "show", "sums-1", "1", "--dir", str(door.directory)]
    result = CliRunner().invoke(main, command, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    assert "11 of 50" in result.output
    assert "north: ward<1>/six, ward<1>/seven, lab (9 devices)" in result.output
