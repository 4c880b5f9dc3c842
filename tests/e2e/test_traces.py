"""Traces of rounds over several processes, as a collector receives them."""

import asyncio
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from fedloom.client.config import load
from fedloom.protocol import tracing
from fedloom.protocol.errors import UsageError
from fedloom.protocol.tracing import Tracing
from fedloom.protocol.transport import methods
from fedloom.server import config
from support.agents import Adder, Agents, submit, until
from support.collector import Collector
from support.federation import Federation

pytest.importorskip("opentelemetry.sdk")

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("exporters_end")]

AGENT = """
import sys
from fedloom.client import Client, run

class Adder(Client):
    def train(self, params, task):
        return {n: v + 1 for n, v in params.items()}, 1, {}

run(Adder(), sys.argv[1])
"""


def _process(path, endpoint):
    environ = os.environ | {"FEDLOOM_TRACING_ENDPOINT": endpoint}
    return subprocess.Popen([sys.executable, "-c", AGENT, str(path)], env=environ)


@pytest.fixture(scope="module")
def collector(tmp_path_factory):
    """The spans of two rounds of a server with two client processes."""
    directory = tmp_path_factory.mktemp("traces")
    (directory / "server").mkdir()

    async def play(collector):
        federation = Federation(directory / "server")
        settings = config.load(federation.directory)
        with (federation.directory / config.FILE).open("a") as file:
            file.write(f'[tracing]\nendpoint = "{collector.endpoint}"\n')
        assert config.load(federation.directory) == replace(
            settings, tracing=Tracing(endpoint=collector.endpoint)
        )
        await federation.start()
        agents, processes = Agents(federation, directory), []
        try:
            for name in ("a", "b"):
                await agents.enrol(name)
                path = directory / name / "client.toml"
                processes.append(_process(path, collector.endpoint))
            await until(lambda: len(federation.contexts.fleet) == 2)
            # Too large to come with its offer.
            params = {"b": np.zeros(methods.OFFERED_MODEL_BYTES // 4, np.float32)}
            run = await submit(federation, params, rounds=2, cohort={"goal": 2, "quorum": 2})
            await federation.ended(run)
            for process in processes:
                process.terminate()
            for process in processes:
                assert await asyncio.to_thread(process.wait, 20) == 0
        finally:
            for process in processes:
                process.kill()
                process.wait()
            await federation.stop()

    with Collector().listening() as collector:
        asyncio.run(play(collector))
        yield collector


@pytest.mark.long
def test_a_round_is_a_tree_from_offer_to_commit(collector):
    """Each span has its parent, also across processes."""
    paths = {name: {tuple(collector.path(span)) for span in collector.of(name)}
             for name in {span.name for span in collector.spans}}  # fmt: skip
    task = ("round", "offer", "task")
    # An update that is accepted as the last one may be added by the commit.
    paths["fold"].discard(("round", "commit", "fold"))
    assert paths == {
        "round": {("round",)},
        "offer": {("round", "offer")},
        "task": {task},
        "download": {(*task, "download")},
        "train": {(*task, "train")},
        "upload": {(*task, "upload")},
        "accept": {(*task, "upload", "accept")},
        "fold": {(*task, "upload", "accept", "fold")},
        "commit": {("round", "commit")},
    }
    counts = {name: len(collector.of(name)) for name in paths}
    assert counts == {
        "round": 2, "offer": 4, "task": 4, "download": 4, "train": 4, "upload": 4, "accept": 4,
        "fold": 4, "commit": 2,
    }  # fmt: skip
    assert not [span for span in collector.spans if span.error]


def test_each_round_is_a_separate_trace(collector):
    """With number and outcome, and the client's name on spans of a client."""
    rounds = {span.trace: span for span in collector.of("round")}
    assert sorted(span.attributes["fedloom.round"] for span in rounds.values()) == [1, 2]
    for span in rounds.values():
        assert span.attributes["fedloom.outcome"] == "committed"
        assert span.attributes["fedloom.cause"] == "goal"
    for span in collector.spans:
        assert span.trace in rounds
        assert rounds[span.trace].begun <= span.begun <= span.ended
    for trace in rounds:
        offered = {
            s.attributes["fedloom.client"] for s in collector.of("offer") if s.trace == trace
        }
        assert offered == {"a", "b"}


def test_spans_name_their_service(collector):
    """Spans of the device belong to the client, in the server's trace."""
    sides = {span.name: span.service for span in collector.spans}
    of_clients = {name for name, service in sides.items() if service == "fedloom-client"}
    assert of_clients == {"task", "download", "train", "upload"}
    assert set(sides.values()) == {"fedloom-client", "fedloom-server"}


@pytest.mark.long
def test_a_refusal_and_a_failure_are_errors_of_their_spans(tmp_path):
    """With the code, and without the text of the training's error."""

    class Broken(Adder):
        def train(self, params, task):
            raise RuntimeError("patient 3 has no scan")

    async def play(collector):
        (tmp_path / "server").mkdir()
        federation = await Federation(tmp_path / "server").start()
        federation.contexts.tracer = tracing.tracer(collector.endpoint, "fedloom-server")
        agents = Agents(federation, tmp_path)
        try:
            await agents.enrol("a")
            traced = Tracing(endpoint=collector.endpoint)
            agents.configs["a"] = replace(agents.configs["a"], tracing=traced)
            await agents.start("a", Broken())
            run = await submit(federation, {"b": np.zeros(3)}, cohort={"goal": 1, "quorum": 1})
            ledger = federation.ledger
            await until(lambda: [m.phase for m in ledger.cohort(run, 1)] == ["failed"])
            await federation.server.runs.command(run, "stop")
        finally:
            await agents.stop()
            await federation.stop()
            await asyncio.to_thread(federation.contexts.tracer.close)

    with Collector().listening() as collector:
        asyncio.run(play(collector))
    assert [span.error for span in collector.of("task")] == ["RuntimeError"]
    assert not [span for span in collector.spans if "scan" in str(span)]
    assert collector.of("round")[0].attributes["fedloom.outcome"] == "abandoned"
    assert collector.path(collector.of("train")[0]) == ["round", "offer", "task", "train"]


@pytest.mark.long
def test_an_unreachable_collector_delays_nothing(tmp_path):
    """Spans are lost; the round is not."""

    async def play():
        (tmp_path / "server").mkdir()
        federation = await Federation(tmp_path / "server").start()
        federation.contexts.tracer = tracing.tracer("http://127.0.0.1:9", "fedloom-server")
        agents = Agents(federation, tmp_path)
        try:
            await agents.start("a", Adder())
            run = await submit(federation, {"b": np.zeros(3)}, cohort={"goal": 1, "quorum": 1})
            await federation.ended(run)
            assert federation.ledger.run(run).state == "finished"
        finally:
            await agents.stop()
            await federation.stop()
            await asyncio.to_thread(federation.contexts.tracer.close)

    asyncio.run(play())


@pytest.mark.long
def test_without_an_endpoint_opentelemetry_is_not_imported():
    code = (
        "import sys, fedloom.server.context, fedloom.client.agent.agent\n"
        "from fedloom.protocol.tracing import tracer\n"
        "with tracer('', 'x').span('round') as span:\n    assert span.traceparent == ''\n"
        "assert not [m for m in sys.modules if m.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("endpoint", ["localhost:4318", "grpc://a:4317", "file:///x"])
def test_an_endpoint_must_be_a_url(tmp_path, endpoint):
    """On both sides; the error names the setting."""
    path = tmp_path / "client.toml"
    path.write_text(f'server = "a:1"\nstate_dir = "x"\n[tracing]\nendpoint = "{endpoint}"\n')
    with pytest.raises(UsageError, match="endpoint"):
        load(path, {})
    (tmp_path / config.FILE).write_text(f'[tracing]\nendpoint = "{endpoint}"\n')
    with pytest.raises(UsageError, match="endpoint"):
        config.load(tmp_path)


TRACE = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"


@pytest.mark.parametrize(
    "sent",
    ["", None, b"x", "00-" + "0" * 32 + "-" + "2" * 16 + "-01", TRACE + "x", TRACE.upper() + "A",
     TRACE.replace("00-", "ff-"), TRACE + "\n"],
)  # fmt: skip
def test_an_invalid_traceparent_is_ignored(sent):
    """The peer may send any bytes."""
    assert tracing.checked(sent) == ""


def test_a_client_cannot_write_into_another_trace():
    """The span of an update belongs to the trace of its round, or has no parent."""
    other = TRACE.replace("1" * 32, "3" * 32)
    assert tracing.checked(TRACE, within=TRACE) == TRACE
    assert tracing.checked(other, within=TRACE) == ""
