"""Lists of runs and clients by study: in the API, in the pages' URLs and from the command line."""

import csv
import io
import json

import pytest
from click.testing import CliRunner

from fedloom.cli.main import main
from support.door import Door
from support.visitor import Visitor

STUDIES = {"heart": "cardio", "tumour": "onco", "plain": ""}
"""A client's and a run's name, and their study."""


def fill(door, folder, studies):
    """A client and a run for each name, in its study."""
    for name, study in studies.items():
        door.contexts.ledger.add_token(name, "hash", name, 4e9, study)
        door.contexts.ledger.enrol(name, f"serial-{name}", 4e9)
        door.call(door.contexts.fleet.assign, name, study)
        door.submit(folder, name=name, study=study)


@pytest.fixture(scope="module")
def door(tmp_path_factory):
    """A server with two studies, and a client and a run of none."""
    folder = tmp_path_factory.mktemp("filter")
    with Door(folder / "state", console="127.0.0.1:0") as door:
        fill(door, folder, STUDIES)
        yield door


def program(door, *studies):
    """A program that is limited to studies; to none without any."""
    wish = {"name": "ci", "scope": "viewer"} | ({"studies": studies} if studies else {})
    return Visitor(door.site, token=door.ask("POST", "/api-tokens", wish)[1]["token"])


def rows(text):
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.parametrize(
    ("study", "found"),
    [("cardio", {"heart"}), ("onco", {"tumour"}), ("-", {"plain"}), ("", set(STUDIES)),
     ("card", set()), ("nosuch", set())],
)  # fmt: skip
def test_lists_hold_what_is_of_the_study(door, study, found):
    """The same in the API, on the page and in its file."""
    reader = program(door)
    runs = door.ask("GET", f"/runs?study={study}")[1]["runs"]
    assert {run["id"].rpartition("-")[0] for run in runs} == found
    clients = door.ask("GET", f"/clients?study={study}")[1]
    assert ({c["name"] for c in clients["clients"]}, clients["total"]) == (found, len(found))
    for page, key in (("runs", "run"), ("clients", "client")):
        text = reader.ask("GET", f"/{page}?study={study}&as=csv").text
        assert {row[key].split("-")[0] for row in rows(text)} == found
        for row in rows(text):
            assert row["study"] == STUDIES[row[key].split("-")[0]]
        shown = reader.ask("GET", f"/{page}?study={study}").text
        assert {name for name in STUDIES if f">{name}" in shown} == found


def test_other_filters_and_order_go_with_it(door):
    """Every filter must match; the study can be sorted by."""
    reader = program(door)
    assert rows(reader.ask("GET", "/clients?study=cardio&q=tumour&as=csv").text) == []
    assert rows(reader.ask("GET", "/runs?study=cardio&state=finished&as=csv").text) == []
    for page in ("runs", "clients"):
        text = reader.ask("GET", f"/{page}?sort=-study&as=csv").text
        studies = [row["study"] for row in rows(text)]
        assert [s for s in studies if s] == ["onco", "cardio"]


def test_the_field_is_on_the_page_only_if_there_are_several(door, tmp_path):
    """For a limited reader, if several are his own; the URL's value is kept in the field."""

    def has_field(reader, query=""):
        return ['id="study"' in reader.ask("GET", f"/{page}{query}").text
                for page in ("runs", "clients")]  # fmt: skip

    assert has_field(program(door)) == [True, True]
    assert has_field(program(door, "cardio", "onco")) == [True, True]
    assert has_field(program(door, "cardio")) == [False, False]
    text = program(door).ask("GET", "/runs?study=onco").text
    assert '<option value="onco" selected>' in text
    assert '<option value="gone" selected>' in program(door).ask("GET", "/runs?study=gone").text
    with Door(tmp_path / "state", console="127.0.0.1:0") as other:
        fill(other, tmp_path, {"plain": ""})
        assert has_field(program(other)) == [False, False]
        assert "study" not in rows(program(other).ask("GET", "/runs?as=csv").text)[0]


def test_a_limited_reader_finds_only_own_studies(door):
    """The filter widens nothing; `-` is none of his."""
    reader = program(door, "cardio")
    for study, found in (("onco", []), ("-", []), ("cardio", ["heart"]), ("", ["heart"])):
        runs = reader.ask("GET", f"/v1/runs?study={study}").document["runs"]
        assert [run["id"].rpartition("-")[0] for run in runs] == found
        clients = reader.ask("GET", f"/v1/clients?study={study}").document["clients"]
        assert [c["name"] for c in clients] == found


def test_several_clients_are_chosen_by_study(door):
    """As the page does for all that match its filters."""
    wish = {"action": "drain", "match": {"study": "onco"}}
    assert door.ask("POST", "/client-groups?preview=true", wish)[1]["clients"] == ["tumour"]


def test_commands_filter_by_study(door, monkeypatch):
    """The table of runs names studies if it has several."""
    monkeypatch.setenv("FEDLOOM_DIR", str(door.directory))

    def out(*words):
        result = CliRunner().invoke(main, words)
        assert result.exit_code == 0, result.output
        return result.stdout

    clients = json.loads(out("client", "list", "--study", "cardio", "--json"))["clients"]
    assert [c["name"] for c in clients] == ["heart"]
    runs = json.loads(out("run", "list", "--study", "-", "--json"))["runs"]
    assert [run["id"].rpartition("-")[0] for run in runs] == ["plain"]
    assert "STUDY" in out("run", "list")
    assert "STUDY" not in out("run", "list", "--study", "onco")
    assert out("run", "list", "--study", "gone") == "No run matches.\n"
    assert out("client", "list", "--study", "gone") == "No client matches.\n"
