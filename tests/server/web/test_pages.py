"""The console's pages over a real socket."""

import logging
import re
import time

import pytest

from fedloom.server.fleet.last_seen import Seen
from fedloom.server.http.shared_answers import TOPICS
from fedloom.server.metrics.log_buffer import about
from support.door import SPEC, Door, _Connection, write_model
from support.scene import wait_for

STATIC_PAGES = (
    "/",
    "/runs",
    "/clients",
    "/models",
    "/privacy",
    "/enrolment",
    "/audit",
    "/logs",
    "/compare",
    "/runs/new",
)

LIVE_PAGES = ("/", "/runs", "/clients", "/models", "/privacy", "/enrolment", "/audit")

NO_PAGES = ("/runs/{run}/curves", "/curves")


@pytest.fixture
def door(tmp_path):
    """A server with its authority."""
    with Door(tmp_path / "state") as door:
        yield door


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    """A server without runs, for tests that make none."""
    with Door(tmp_path_factory.mktemp("empty") / "state") as door:
        yield door


def get(door, path):
    """A page's status and text."""
    connection = _Connection(door.directory / "control.sock")
    connection.request("GET", path)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def test_a_page_has_the_version_that_its_stream_begins_with(door):
    """A browser that finds another one there requests the live part."""

    def shown():
        return int(re.search(r'<body [^>]*data-version="(-?\d+)"', get(door, "/clients")[1])[1])

    first = shown()
    assert first == door.contexts.live.version
    door.contexts.live.changed("clients")
    assert shown() == first + 1


def submit(door, tmp_path):
    """Start a run; returns its id."""
    digest = door.contexts.models.add(write_model(tmp_path / "m.safetensors"))
    return door.ask("POST", "/runs", {"spec": SPEC, "model": digest})[1]["id"]


@pytest.mark.parametrize("path", LIVE_PAGES)
def test_a_live_part_is_drawn_by_itself(door, tmp_path, path):
    """As browsers fetch it after an event; with a private and a public run."""
    door.submit(tmp_path, privacy={"clip": 1.0, "noise_multiplier": 4.0, "delta": 1e-6})
    submit(door, tmp_path)
    status, text = get(door, f"{path}?part=live")
    assert status == 200
    assert "<html" not in text


@pytest.mark.parametrize("path", STATIC_PAGES)
def test_every_page_works_on_an_empty_server(empty, path):
    """It says what to do next."""
    status, text = get(empty, path)
    assert status == 200
    assert 'class="empty"' in text or 'id="none"' in text
    assert "<h1>" in text


def test_pages_have_no_inline_scripts_or_styles(door, tmp_path):
    """So that the content security policy can be strict."""
    run = submit(door, tmp_path)
    digest = door.contexts.ledger.run(run).model
    pages = (f"/runs/{run}", f"/runs/{run}/rounds", f"/models/{digest}", f"/runs/new?clone={run}")
    for path in (*STATIC_PAGES, *pages):
        status, text = get(door, path)
        assert status == 200, path
        assert not re.search(r"<style|style=|<script(?![^>]*src=)|\son[a-z]+=|javascript:", text)
        assert not re.search(r"(src|href)=\"(https?:)?//", text)


def test_run_page_offers_the_possible_actions(door, tmp_path):
    """A round that waits for clients can be paused, aborted and stopped, not closed."""
    run = submit(door, tmp_path)
    _, text = get(door, f"/runs/{run}")
    assert f"<h1>{run}</h1>" in text
    assert "of 2 clients available" in text
    offered = re.findall(rf'data-act="/v1/runs/{run}/([a-z]+)"', text)
    assert offered == ["pause", "priority", "goal", "abort", "stop"]


def test_ended_run_has_its_duration(door, tmp_path):
    """An active one has the time left."""
    run = submit(door, tmp_path)
    assert "<dt>Time left</dt>" in get(door, f"/runs/{run}")[1]
    door.ask("POST", f"/runs/{run}/stop", {})
    wait_for(lambda: door.contexts.ledger.run(run).ended_at, "it does not end")
    text = get(door, f"/runs/{run}")[1]
    assert ("<dt>Took</dt>" in text, "Time left" in text) == (True, False)


@pytest.mark.long
def test_live_part_is_part_of_the_page(door, tmp_path):
    run = submit(door, tmp_path)
    _, part = get(door, f"/runs/{run}?part=live")
    assert "<html" not in part
    assert f"<h1>{run}</h1>" in part


def test_live_parts_are_versioned_by_the_topics_of_their_page(door, tmp_path):
    """Otherwise they would be rendered too often, or be stale."""
    run = submit(door, tmp_path)
    values = {"run": run, "digest": door.contexts.ledger.run(run).model}
    pages = [path for path in TOPICS if path not in NO_PAGES]
    assert len(pages) >= 8
    for path in pages:
        text = get(door, path.format_map(values))[1]
        [heard] = re.findall(r'id="live" data-live="([^"]*)"', text)
        assert sorted(heard.split()) == sorted(TOPICS[path].format_map(values).split()), path


def test_static_files_are_cached_until_they_change(door):
    """Their URLs contain a fingerprint of the content."""
    _, text = get(door, "/")
    files = re.findall(r'(?:src|href)="(/static/[^"]+)"', text)
    assert len(files) >= 6
    for file in files:
        connection = _Connection(door.directory / "control.sock")
        connection.request("GET", file)
        answer = connection.getresponse()
        assert answer.status == 200, file
        assert "immutable" in answer.getheader("cache-control"), file
        connection.close()


def test_log_page_filters_by_client_and_run(door):
    """With links to them; the fields keep their values."""
    for words in (("oak", "digits-1", 3), ("elm", "digits-1"), ("oak", "other-2")):
        door.contexts.log_ring.emit(
            logging.makeLogRecord(
                {"msg": f"seen {'/'.join(map(str, words))}", "levelname": "INFO", **about(*words)}
            )
        )

    def shown(query):
        return re.findall(r"seen ([^<]+)<", get(door, f"/logs{query}")[1])

    assert shown("") == ["oak/other-2", "elm/digits-1", "oak/digits-1/3"]
    assert shown("?client=oak") == ["oak/other-2", "oak/digits-1/3"]
    assert shown("?client=oak&run=dig") == ["oak/digits-1/3"]
    assert shown("?client=oak&level=error") == []
    text = get(door, "/logs?client=oak&run=digits-1")[1]
    assert 'name="client" value="oak"' in text
    assert 'href="/runs/digits-1/rounds/3"' in text


def test_names_chosen_by_clients_are_escaped(door):
    ledger = door.contexts.ledger
    ledger.add_token("01", "hash", "ward", time.time() + 60)
    ledger.enrol("01", "01", time.time() + 60)
    status, text = get(door, "/runs?q=%3Cscript%3Ealert(1)%3C/script%3E")
    assert status == 200
    assert "<script>alert" not in text


def test_supernodes_are_shown_as_such_with_what_they_lack(door, tmp_path):
    """In the list, on the client's page, and where a run is started."""
    submit(door, tmp_path)  # its model can be chosen
    ledger = door.contexts.ledger
    ledger.saw({"node-1": Seen(at=1.0, version="1", labels={"kind": "supernode"})})
    ledger.saw({"agent-1": Seen(at=1.0, version="1", labels={})})
    assert "kind=supernode" in get(door, "/clients")[1]
    assert "SuperNode of Flower" in get(door, "/clients/node-1")[1]
    assert "SuperNode" not in get(door, "/clients/agent-1")[1]
    assert "1 client is a SuperNode of Flower" in get(door, "/runs/new")[1]
