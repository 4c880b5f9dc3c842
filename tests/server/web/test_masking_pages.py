"""Masking sessions on the console's pages: who was asked and who sent what."""

import re

import pytest

from fedloom.server.engine.conduct import Conduct, Suspicion
from fedloom.server.ledger.masking import blames
from fedloom.server.ledger.masking import sessions as phases
from fedloom.server.planning.spec import parse
from support.door import Door, _Connection
from support.masked_rounds import AT, MASKED, NUMBER, RUN, abandoned, done, masked_ledger, send
from support.masked_sessions import Device, Stage, config


@pytest.fixture
def door(tmp_path):
    """Two sessions that share: abcd and efgh."""
    folder = tmp_path / "state"
    folder.mkdir()
    masked_ledger(folder, spec=parse(MASKED).as_dict()).close()
    with Door(folder) as door:
        door.ledger = door.contexts.ledger
        yield door


def text(html):
    """What a reader sees, with single spaces."""
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def get(door, path):
    """A page's status and its HTML."""
    connection = _Connection(door.directory / "control.sock")
    connection.request("GET", path)
    answer = connection.getresponse()
    html = answer.read().decode()
    connection.close()
    return answer.status, html


def shown(door, path):
    status, html = get(door, path)
    assert status == 200, html
    return html


def test_a_round_lists_its_sessions(door):
    done(door.ledger, 0, "abd")
    send(door.ledger, phases.SHARES, "fg", session=1)
    found = text(shown(door, f"/runs/{RUN}/rounds/{NUMBER}"))
    assert "the server can read the sum of each, and no single update" in found
    assert "0 : members of session 0 done 4 3 1 4 3 3 3" in found
    assert "1 : members of session 1 sharing 4 3 1 2 so far – – –" in found


def test_an_abandoned_session_says_why(door):
    """And who is blamed; names are escaped."""
    abandoned(door.ledger, 0, closing="abc", reason="<b>too few</b>")
    door.ledger.blame(AT, "d", blames.FALSE_REVEAL)
    html = shown(door, f"/runs/{RUN}/rounds/{NUMBER}")
    assert "&lt;b&gt;too few" in html
    assert "proved dead 3 of 4 gave it up" in text(html)
    assert "d revealed shares that were not dealt" in text(html)


def test_a_session_has_a_page_with_its_members(door):
    """With times of what each sent, and links to the other sessions."""
    done(door.ledger, 0, "abd")
    html = shown(door, f"/runs/{RUN}/rounds/{NUMBER}/sessions/0")
    assert f'href="/runs/{RUN}/rounds/{NUMBER}/sessions/1"' in html
    rows = re.findall(r'<tr id="member-(\w)">(.*?)</tr>', html)
    assert {name: row.count("<time") for name, row in rows} == {"a": 5, "b": 5, "c": 2, "d": 5}
    assert {name: text(row).split()[1] for name, row in rows}["c"] == "no"
    assert "secret shares" not in html


def test_a_session_that_is_not_there_is_not_found(door):
    assert get(door, f"/runs/{RUN}/rounds/{NUMBER}/sessions/2")[0] == 404
    assert get(door, f"/runs/{RUN}/rounds/1/sessions/0")[0] == 404


def test_a_plain_round_has_no_such_card(door):
    assert "Masking sessions" not in shown(door, f"/runs/{RUN}/rounds/1")


@pytest.mark.parametrize("path", [f"/runs/{RUN}", "/"])
def test_a_masked_run_has_a_badge_with_its_claim(door, path):
    assert "masked: the server sees sums of 3 to 4 devices" in text(shown(door, path))


def test_the_list_of_runs_marks_masked_ones(door, tmp_path):
    door.submit(tmp_path)
    rows = re.findall(r"<tr id.*?</tr>", shown(door, "/runs"))
    assert [("masked" in text(row), f'/runs/{RUN}"' in row) for row in rows] in (
        [(True, True), (False, False)],
        [(False, False), (True, True)],
    )


@pytest.mark.parametrize("path", ["/", "/runs/{run}"])
def test_an_open_plain_round_has_no_masking_phase(door, tmp_path, path):
    run = door.submit(tmp_path)
    assert "selecting reporting closing" in text(shown(door, path.format(run=run)))


class Open:
    """A run whose open round is played on a stage, with the engine of the stage."""

    def __init__(self, door, tmp_path):
        self.run = door.submit(tmp_path)
        self.stage = Stage({name: Device(name) for name in "abcdefgh"}, config(8))
        self.door = door
        door.call(setattr, door.runs.get(self.run).round, "engine", self.stage.engine)

    def now(self, path):
        return text(shown(self.door, path))


def test_an_open_round_is_ready_and_then_masking(door, tmp_path):
    """On the page of the run and on the overview."""
    found = Open(door, tmp_path)
    found.stage.ready()
    for path in (f"/runs/{found.run}", "/"):
        now = found.now(path)
        assert "selecting ready masking 1/4 closing committed" in now, now
        assert "masking 1/4 shares from 0 of 8 2 sessions" in now


def test_the_page_of_a_client_says_which_runs_draw_it_last(door, monkeypatch):
    """And why; nothing where no run does."""
    for name in "ab":
        door.ledger.add_token(f"token {name}", "hash", name, 9e9)
        door.ledger.enrol(f"token {name}", f"serial {name}", 9e9)
    conduct = Conduct(marked={"a": Suspicion(marks=3, sums=4)})
    monkeypatch.setattr(type(door.runs), "conducts", lambda _: {RUN: conduct})
    says = f"{RUN} : drawn last of all: 3 of its 4 sums of masking sessions were implausible"
    assert says in text(shown(door, "/clients/a"))
    assert "drawn last" not in shown(door, "/clients/b")
