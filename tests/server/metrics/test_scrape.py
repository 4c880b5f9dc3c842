"""Metrics of a real server: Prometheus' format, complete, without names of clients."""

import asyncio
import http.client
import math

import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)
from prometheus_client.parser import text_string_to_metric_families

from fedloom.protocol.errors import Code
from fedloom.server.metrics.gauges import GAUGES
from fedloom.server.metrics.replica import ReplicaState
from support.arena import Arena
from support.door import Door
from support.federation import Federation
from support.forgery import write_model
from support.patience import PATIENCE_S
from support.visitor import Visitor


def read(text):
    """Samples by name and labels."""
    return {
        (s.name, *sorted(s.labels.items())): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }


def of(samples, name, **labels):
    """One sample."""
    return samples[name, *sorted(labels.items())]


def _scrape(port, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request("GET", "/metrics", headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.getheader("content-type"), answer.read().decode()
    finally:
        connection.close()


async def _read(federation):
    port = int(federation.server.console.rpartition(":")[2])
    status, _, text = await asyncio.to_thread(_scrape, port)
    assert status == 200, text
    return text


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """A round with two good updates and a bad one: metrics before, during and after."""
    directory = tmp_path_factory.mktemp("metrics")

    async def tell():
        federation = Federation(directory)
        settings = directory / "server.toml"
        settings.write_text(settings.read_text().replace("open = false", "open = true"))
        await federation.start()
        try:
            names = ("alice", "bob", "mallory")
            identities = {name: federation.enrol(name) for name in names}
            streams = {name: await federation.attend(i) for name, i in identities.items()}
            channels = {name: federation.channel(i) for name, i in identities.items()}
            write_model(directory / "model.safetensors")
            model = federation.contexts.models.add(directory / "model.safetensors")
            arena = Arena(federation, model, identities, streams, channels)
            texts = {"before": await _read(federation)}
            async with arena.open_round() as opened:
                texts["within"] = await _read(federation)
                bad = opened.honest("mallory")
                body = bytearray(bad.body())
                body[-1] ^= 1
                answer = await opened.send("mallory", bad, bytes(body))
                await opened.finish()
                texts["after"] = await _read(federation)
                read_all = {when: read(text) for when, text in texts.items()}
                return read_all | {"text": texts["after"], "run": opened.run, "code": answer.code}
        finally:
            await federation.stop()

    return asyncio.run(tell())


def test_rounds_updates_and_bytes_are_counted(story):
    before, after = story["before"], story["after"]

    def moved(name, **labels):
        return of(after, name, **labels) - of(before, name, **labels)

    committed = {"kind": "train", "outcome": "committed"}
    assert moved("fedloom_rounds_total", reason="early", **committed) == 1
    assert moved("fedloom_rounds_total", reason="goal", **committed) == 0
    assert moved("fedloom_updates_accepted_total") == 2
    assert moved("fedloom_offers_total") == 3
    assert moved("fedloom_refusals_total", what="update", code=story["code"].value) == 1
    refused = [v for k, v in after.items() if k[0] == "fedloom_refusals_total"]
    assert sum(refused) == 1
    assert moved("fedloom_received_bytes_total") > 3 * 100
    for step in ("fold", "sync", "checksum", "upload"):
        assert moved(f"fedloom_{step}_seconds_count") == 2, step
    for step in ("round", "commit"):
        assert moved(f"fedloom_{step}_seconds_count") == 1, step
    assert moved("fedloom_ledger_seconds_count") > 10
    assert of(after, "fedloom_round_seconds_sum") > of(after, "fedloom_commit_seconds_sum") > 0


def test_open_round_is_measured(story):
    """Members, goal and deadline; afterwards they are gone, and the run's progress is 1."""
    within, after, run = story["within"], story["after"], story["run"]
    assert of(within, "fedloom_round", run=run) == 1
    phases = [v for k, v in within.items() if k[0] == "fedloom_round_members"]
    assert sum(phases) == of(within, "fedloom_round_goal", run=run) == 3
    assert 0 < of(within, "fedloom_round_deadline_seconds", run=run) <= 3600
    assert of(within, "fedloom_clients", state="working") == 3
    assert of(within, "fedloom_run_progress", run=run) == 0
    assert of(after, "fedloom_run_progress", run=run) == 1
    assert not [key for key in after if key[0].startswith("fedloom_round_accepted")]
    assert of(after, "fedloom_clients", state="available") == 3
    assert of(after, "fedloom_clients_enrolled", status="active") == 3


def test_measures_and_certificates_are_reported(story):
    """The clients' loss, and the expiry of every certificate."""
    after, run = story["after"], story["run"]
    measures = [k for k in after if k[0] == "fedloom_run_measure"]
    assert all(dict(k[1:])["measure"] in ("loss", "accuracy") for k in measures)
    ends = {dict(k[1:])["certificate"]: v for k, v in after.items()
            if k[0] == "fedloom_certificate_expiry_seconds"}  # fmt: skip
    assert set(ends) == {"root", "issuer", "server", "client"}
    assert ends["client"] == min(ends.values())
    assert run


def test_process_is_measured(story):
    """Under the usual names of dashboards."""
    after = story["after"]
    assert of(after, "process_resident_memory_bytes") > 1e7
    assert of(after, "process_open_fds") > 3


def test_labels_have_few_values(story):
    """A series per client would overload a monitoring system."""
    assert not any(name in story["text"] for name in ("alice", "bob", "mallory"))
    codes = {dict(k[1:])["code"] for k in story["after"] if k[0] == "fedloom_refusals_total"}
    assert codes == {code.value for code in Code}


def test_gauges_have_descriptions(story):
    help_of = {line.split()[2] for line in story["text"].splitlines() if line.startswith("# HELP")}
    assert {gauge.name for gauge in GAUGES} <= help_of
    assert all(math.isfinite(v) for k, v in story["after"].items() if "bucket" not in k[0])


# ---- access --------------------------------------------------------------------------------------


def test_a_replica_says_who_drives(tmp_path):
    """Beside its other metrics; a server alone has no such samples."""
    with Door(tmp_path / "state", console="127.0.0.1:0", metrics_open=True) as door:
        alone = read(_scrape(door.port)[2])
        door.app.state.context.replica = ReplicaState(epoch=7, drives=True)
        found = read(_scrape(door.port)[2])
    assert not any("driver" in name or "replica" in name for name, *_ in alone)
    assert of(found, "fedloom_driver_epoch") == 7
    assert of(found, "fedloom_replica_drives") == 1


def test_openmetrics_is_available(tmp_path):
    """It ends with a mark and parses."""
    with Door(tmp_path / "state", console="127.0.0.1:0", metrics_open=True) as door:
        port = int(door.site.url.rpartition(":")[2])
        accept = "application/openmetrics-text;version=1.0.0"
        status, media_type, text = _scrape(port, accept=accept)
    assert (status, media_type.split(";")[0]) == (200, "application/openmetrics-text")
    assert text.endswith("# EOF\n")
    assert len(list(openmetrics_families(text))) > 20


def test_metrics_scope_reads_only_metrics(tmp_path):
    """By default, a token is required."""
    with Door(tmp_path / "state", console="127.0.0.1:0") as door:
        _, made = door.ask("POST", "/api-tokens", {"name": "prometheus", "scope": "metrics"})
        scraper = Visitor(door.site, token=made["token"])
        assert scraper.ask("GET", "/metrics").status == 200
        assert scraper.ask("GET", "/v1/overview").status == 403
        assert Visitor(door.site).ask("GET", "/metrics").status == 401
        wish = {"name": "ann", "scope": "metrics", "password": "correct horse battery"}
        assert door.ask("POST", "/users", wish)[0] == 422  # no pages


def test_runs_are_counted_in_each_state(tmp_path):
    """A queued one too."""
    settings = {"metrics_open": True, "max_running": 1}
    with Door(tmp_path / "state", console="127.0.0.1:0", **settings) as door:
        for _ in range(3):
            door.submit(tmp_path)
        found = read(_scrape(int(door.site.url.rpartition(":")[2]))[2])
    states = {s: of(found, "fedloom_runs", state=s) for s in ("queued", "running", "paused")}
    assert states == {"queued": 2, "running": 1, "paused": 0}


@pytest.mark.long
@pytest.mark.parametrize("sign", ["x-forwarded-for", "via", "origin", "sec-fetch-site"])
def test_open_metrics_are_only_local(tmp_path, sign):
    """Callers through a proxy and web pages also come from loopback."""
    with Door(tmp_path / "state", console="127.0.0.1:0", metrics_open=True) as door:
        port = int(door.site.url.rpartition(":")[2])
        assert _scrape(port)[0] == 200
        assert _scrape(port, **{sign: "203.0.113.9"})[0] == 401


def test_open_metrics_are_closed_to_a_proxy_without_headers(tmp_path):
    """Such as one that only passes on the Host header."""
    settings = {"console_url": "https://fl.example.org", "metrics_open": True}
    with Door(tmp_path / "state", console="127.0.0.1:0", **settings) as door:
        assert _scrape(door.port)[0] == 200
        assert _scrape(door.port, host="fl.example.org")[0] == 401
