"""An app's own `ServerApp` on a real server with agents as processes, against Flower's calls."""

import asyncio
import json
import random
import signal
import textwrap
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs Flower: make flower")
pytest.importorskip("sqlalchemy", reason="needs the server's extra")

from flwr.app import Context, RecordDict

from fedloom.server.flower import app_process
from support.flower import APPS, Here, deployed, import_app

pytestmark = pytest.mark.e2e

WHOLE = APPS / "whole"
SETTINGS = f'[flower_apps]\nwhole = "{WHOLE}"\n'
NODES = 2


def by_flower(tmp_path, monkeypatch, rounds=4):
    """The result of the same app on a grid in this process."""
    monkeypatch.chdir(tmp_path)
    app = import_app("whole", "client_app").app
    config = {"num-rounds": rounds, "server.eta": 0.1}
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=config)
    random.seed(0)
    import_app("whole", "server_app").app(Here(app, NODES, config), context)
    return json.loads((tmp_path / "result.json").read_text())


def submit(here, *words):
    return here.call("run", "submit", "--flower-server", "whole", *words, "--dir", here.server)[
        "id"
    ]


def result(here, run):
    return json.loads((here.server / "flower" / run / "files" / "result.json").read_text())


def test_an_app_runs_whole(tmp_path, monkeypatch):
    """Its queries, its failure and its rounds give what they give under Flower, to the bit."""
    with deployed(tmp_path, WHOLE) as here:
        here.serve(SETTINGS)
        for number in range(NODES):
            here.attend("whole.client_app:app", number, NODES)
        run = submit(here)
        status = here.ended(run)
        assert status["state"] == "finished", here.logs()
        ours = result(here, run)
        kept = sorted(path.name for path in (here.server / "flower" / run).iterdir())
        models = list((here.server / "models").iterdir())
    assert ours == by_flower(tmp_path, monkeypatch)
    assert {row["kind"] for row in status["rounds"]} == {"message"}
    assert len(status["rounds"]) == 2 + 2 * 4
    assert kept == ["files"]
    assert len(models) == 1  # the run's empty one


def test_an_app_continues_after_a_kill_of_the_server(tmp_path, monkeypatch):
    """Its process ends with the server; the next one repeats it, and no client trains twice.

    So it does after a stop.
    """
    trained = tmp_path / "trained"
    with deployed(tmp_path, WHOLE) as here:
        here.environment["TRAINED"] = str(trained)
        here.serve(SETTINGS, steady=True)
        for number in range(NODES):
            here.attend("whole.client_app:app", number, NODES)
        run = submit(here, config(tmp_path, "num-rounds = 25\n"))
        for rounds, number in ((8, signal.SIGKILL), (20, signal.SIGKILL), (30, signal.SIGTERM)):
            here.waited(lambda rounds=rounds: len(here.status(run)["rounds"]) >= rounds)
            here.kill_server(number)
            assert here.waited(lambda: not processes_of(run))
            here.serve_again()
        status = here.ended(run)
        assert status["state"] == "finished", here.logs()
        ours = result(here, run)
    assert ours == by_flower(tmp_path, monkeypatch, rounds=25)
    expected = sorted(f"{node} {number}" for node in range(NODES) for number in range(1, 26))
    assert sorted(trained.read_text().splitlines()) == expected


def config(tmp_path, text):
    """A run's file with this config."""
    file = tmp_path / "whole.toml"
    file.write_text(f'name = "whole"\n[cohort]\npatience_s = 600\n[config]\n{text}')
    return file


def processes_of(run):
    """The processes of a run's app: their working folder is the run's."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if str((process / "cwd").readlink()).endswith(f"/flower/{run}/files"):
                found.append(process.name)
    return found


CLIENT = """
import time

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.query()
def query(message, context):
    sizes = message.content["ask"].get("bytes", 1)
    time.sleep(message.content["ask"].get("sleep", 0))
    return Message(RecordDict({"told": ConfigRecord({"raw": bytes(sizes)})}), reply_to=message)
"""
HEAD = """
import random
import sys
import threading
import time
from pathlib import Path

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()


def ask(node, **values):
    content = RecordDict({"ask": ConfigRecord(values)})
    return Message(content, dst_node_id=node, message_type="query")


def nodes_of(grid, wanted=1):
    while len(nodes := list(grid.get_node_ids())) < wanted:
        time.sleep(0.05)
    return nodes


@app.main()
def main(grid, context):
"""


@contextmanager
def serving(tmp_path, body, clients=1):
    """A server whose app `whole` has this body, and agents that answer queries."""
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "asking.py").write_text(CLIENT)
    (folder / "telling.py").write_text(HEAD + textwrap.indent(textwrap.dedent(body), "    "))
    (folder / "pyproject.toml").write_text(
        '[tool.flwr.app.components]\nserverapp = "telling:app"\n'
    )
    with deployed(tmp_path, folder) as here:
        here.serve(f'[flower_apps]\nwhole = "{folder}"\n', steady=True)
        for number in range(clients):
            here.attend("asking:app", number, clients)
        yield here


def test_messages_are_sent_one_by_one_and_by_many_threads(tmp_path):
    """As older strategies send them; replies are pulled until all have come, each once."""
    body = """
    nodes, pulled = nodes_of(grid, 3), []
    ids = [grid.push_messages([ask(node, bytes=i)])[0] for i, node in enumerate(nodes * 3)]
    while len(pulled) < 9:
        pulled += grid.pull_messages(ids)
        time.sleep(0.01)
    assert grid.pull_messages(ids) == []
    assert sorted(len(r.content["told"]["raw"]) for r in pulled) == list(range(9))
    assert {r.metadata.reply_to_message_id for r in pulled} == set(ids)
    found = []
    def one(node):
        found.extend(grid.send_and_receive([ask(node)]))
    threads = [threading.Thread(target=one, args=(node,)) for node in nodes]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert {r.metadata.src_node_id for r in found} == set(nodes)
    """
    with serving(tmp_path, body, clients=3) as here:
        run = submit(here)
        status = here.ended(run)
        assert status["state"] == "finished", here.logs()
    assert sum(row["accepted"] for row in status["rounds"]) == 12


ANSWERED = """
[reply] = grid.send_and_receive([ask(nodes_of(grid)[0], bytes=2_000_000)])
raise ValueError(reply.error.reason)
"""


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("raise RuntimeError('no data')", "exit 1: RuntimeError: no data"),
        ("import os; os.abort()", "ended by SIGABRT"),
        ("sys.exit(3)", "failed, exit 3"),
        ("grid.push_messages([ask(17)])", "Expected a message to a node of get_node_ids()"),
        ("grid.push_messages([ask(nodes_of(grid)[0], raw=bytes(2_000_000))])",
         "Expected messages of at most 1000000 bytes"),
        (ANSWERED, "Expected a reply of at most 1000000 bytes"),
    ],
)  # fmt: skip
def test_a_failure_ends_the_run_with_its_reason(tmp_path, body, reason):
    """Also an abort in native code, and messages that are too long."""
    file = tmp_path / "run.toml"
    file.write_text("[flower]\nmax_message_mb = 1\n")
    with serving(tmp_path, body) as here:
        run = submit(here, file)
        status = here.ended(run)
        assert status["state"] == "failed", here.logs()
        assert reason in status["reason"]
        assert processes_of(run) == []


def test_an_app_that_sends_other_messages_after_a_restart_is_refused(tmp_path):
    """Its result would be that of no run."""
    body = """
    [node] = nodes_of(grid)
    for number in range(1000):
        grid.send_and_receive([ask(node, at=time.time())])
    """
    with serving(tmp_path, body) as here:
        run = submit(here)
        here.waited(lambda: len(here.status(run)["rounds"]) >= 3)
        here.kill_server()
        here.serve_again()
        status = here.ended(run)
        assert status["state"] == "failed", here.logs()
        assert "another message than before" in status["reason"]


def test_an_operator_pauses_continues_and_stops_an_app(tmp_path):
    """A paused run sends nothing; a stopped one ends its process."""
    body = """
    [node] = nodes_of(grid)
    for number in range(100_000):
        grid.send_and_receive([ask(node, number=number)])
    """
    with serving(tmp_path, body) as here:
        run = submit(here)
        here.waited(lambda: len(here.status(run)["rounds"]) >= 2)
        here.call("run", "pause", run, "--yes", "--dir", here.server)
        assert here.status(run)["state"] == "paused"
        rounds = len(here.status(run)["rounds"])
        time.sleep(1.0)
        assert len(here.status(run)["rounds"]) == rounds
        here.call("run", "resume", run, "--yes", "--dir", here.server)
        here.waited(lambda: len(here.status(run)["rounds"]) > rounds + 2)
        here.call("run", "stop", run, "--yes", "--dir", here.server)
        assert here.ended(run)["state"] == "stopped"
        assert here.waited(lambda: not processes_of(run))


def test_a_client_that_is_gone_gets_no_message(tmp_path):
    """The app gets an error after the grace period."""
    body = """
    first, second = nodes_of(grid, 2)
    Path("begun").touch()
    while not Path("go").exists():
        time.sleep(0.02)
    replies = grid.send_and_receive([ask(first), ask(second)])
    errors = [r.error.reason for r in replies if r.has_error()]
    assert len(errors) == 1 and errors[0].startswith("lost"), errors
    """
    file = tmp_path / "run.toml"
    file.write_text("[cohort]\npatience_s = 10\n")
    with serving(tmp_path, body, clients=2) as here:
        run = submit(here, file)
        folder = here.server / "flower" / run / "files"
        here.waited((folder / "begun").exists)
        gone = here.running.pop()
        gone.terminate()
        gone.wait()
        (folder / "go").touch()
        status = here.ended(run)
        assert status["state"] == "finished", here.logs()


def test_what_a_run_of_an_app_may_set(tmp_path):
    """Its app decides the rest; the app must be one that the operator named."""
    with serving(tmp_path, "pass", clients=0) as here:
        for text, name, message in (
            ("rounds = 3\n", "whole", "Expected no rounds in a run with [flower]"),
            ("[flower]\nserver_app = 'x'\n", "other", "[flower_apps]"),
        ):
            file = tmp_path / "run.toml"
            file.write_text(text)
            words = ("run", "submit", file, "--flower-server", name, "--dir", here.server)
            told = here.call(*words, check=False)
            assert message in told["error"]["message"]


def test_a_device_with_a_policy_declines_messages(tmp_path):
    """A reply may hold anything."""
    body = """
    [reply] = grid.send_and_receive([ask(nodes_of(grid)[0])])
    assert "policy limits what may leave" in reply.error.reason, reply.error.reason
    """
    with serving(tmp_path, body, clients=0) as here:
        agent = here.attend("asking:app", 0, 1, policy="[leaves]\nmetrics = false\n")
        assert agent.poll() is None
        run = submit(here)
        status = here.ended(run)
        assert status["state"] == "finished", here.logs()


def test_a_client_whose_budget_has_no_room_is_not_there(tmp_path):
    """A run of messages has no privacy: a client whose budget allows none gets no message."""
    body = """
    first, second = nodes_of(grid, 2)
    Path("begun").touch()
    while not Path("go").exists():
        time.sleep(0.02)
    assert list(grid.get_node_ids()) == []
    [reply] = grid.send_and_receive([ask(first)])
    assert "privacy budget" in reply.error.reason, reply.error.reason
    """
    with serving(tmp_path, body, clients=2) as here:
        run = submit(here)
        folder = here.server / "flower" / run / "files"
        here.waited((folder / "begun").exists)
        words = ("1", "--delta", "1e-6", "--yes", "--dir", here.server)
        here.call("privacy", "set-budget", *words)
        (folder / "go").touch()
        status = here.ended(run)
        assert status["state"] == "finished", here.logs()
        assert status["rounds"] == []


def test_a_reply_that_is_no_message_is_an_error_of_its_client(tmp_path):
    """The others' replies reach the app, and no client can answer for another one."""
    lying = """
import os
from flwr.app.message.message import make_message
import fedloom.client.flower.adapter as adapter

written = adapter.FlowerClient.answer


def answer(self, message, task):
    reply = written(self, message, task)
    if "LIES" not in os.environ:
        return reply
    told = adapter.Written.FromString(reply)
    told.metadata.src_node_id, told.metadata.reply_to_message_id = 77, "other"
    return told.SerializeToString() if os.environ["LIES"] == "who" else b"\\xff" * 9


adapter.FlowerClient.answer = answer
"""
    body = """
    first, second, third = nodes_of(grid, 3)
    replies = grid.send_and_receive([ask(first), ask(second), ask(third)])
    assert [r.metadata.src_node_id for r in replies] == [first, second, third]
    assert [r.has_error() for r in replies] == [False, False, True]
    assert "cannot be read" in replies[2].error.reason, replies[2].error.reason
    """
    with serving(tmp_path, body, clients=1) as here:
        asking = tmp_path / "app" / "asking.py"
        asking.write_text(lying + asking.read_text())
        for number, lie in ((1, "who"), (2, "noise")):
            here.environment["LIES"] = lie
            here.attend("asking:app", number, 3)
        run = submit(here)
        status = here.ended(run)
        assert status["state"] == "finished", here.logs()


def test_an_app_that_leaves_processes_and_messages_behind_ends(tmp_path):
    """What it started is ended, and what the run needed is deleted."""
    body = """
    import subprocess
    subprocess.Popen(["sleep", "1000"])
    [node] = nodes_of(grid)
    for number in range(20):
        grid.push_messages([ask(node, number=number)])
    """
    with serving(tmp_path, body) as here:
        run = submit(here)
        status = here.ended(run)
        assert status["state"] == "finished", here.logs()
        folder = here.server / "flower" / run
        here.waited(lambda: [path.name for path in folder.iterdir()] == ["files"])
        assert len(list((here.server / "models").iterdir())) == 1
        assert processes_of(run) == []


def test_a_request_beyond_the_limit_ends_the_app(tmp_path, monkeypatch):
    """It would wait for an answer for ever."""
    monkeypatch.setattr(app_process, "_LINE_BYTES", 100)
    body = "grid._link.ask('x' * 1000)"
    (tmp_path / "telling.py").write_text(HEAD + f"    {body}\n")
    (tmp_path / "pyproject.toml").write_text(
        '[tool.flwr.app.components]\nserverapp = "telling:app"\n'
    )
    order = app_process.AppOrder(
        run="r", folder=tmp_path, config={}, seed=0, files=tmp_path, drafts=tmp_path, max_bytes=10
    )

    async def answer(do, values):
        raise AssertionError((do, values))

    failure = asyncio.run(app_process.AppProcess(order, answer, print).run())
    assert "a request of more than 100 bytes" in failure


def test_replies_of_an_aborted_round_are_the_same_after_a_kill_of_the_server(tmp_path):
    """One had replied, one had not."""
    body = """
    first, second = nodes_of(grid, 2)
    replies = grid.send_and_receive([ask(first), ask(second, sleep=1000)])
    with Path("found").open("a") as file:
        print([r.has_error() for r in replies], file=file)
    while not Path("go").exists():
        time.sleep(0.02)
    grid.send_and_receive([ask(first, replies=len(replies))])
    """
    with serving(tmp_path, body, clients=2) as here:
        run = submit(here)
        found = here.server / "flower" / run / "files" / "found"
        here.waited(lambda: sum(row["accepted"] for row in here.status(run)["rounds"]))
        here.call("run", "abort", run, "--yes", "--dir", here.server)
        here.waited(lambda: found.exists() and found.read_text())  # not between the two
        here.kill_server()
        here.serve_again()
        here.waited(lambda: len(found.read_text().splitlines()) == 2)
        (found.parent / "go").touch()
        assert here.ended(run)["state"] == "finished", here.logs()
    assert len(set(found.read_text().splitlines())) == 1
    assert "True" in found.read_text()
    assert "False" in found.read_text()


def test_a_client_that_works_for_another_run_gets_its_message_afterwards(tmp_path):
    """It is not lost, however short the grace period is."""
    body = """
    [node] = nodes_of(grid)
    [reply] = grid.send_and_receive([ask(node, sleep=context.run_config["sleep"])])
    assert not reply.has_error(), reply.error.reason
    """
    with serving(tmp_path, body) as here:
        runs = []
        for seconds in (15, 0):
            file = tmp_path / "run.toml"
            file.write_text(f"[cohort]\npatience_s = 0\n[config]\nsleep = {seconds}\n")
            runs.append(submit(here, file))
            here.waited(lambda: here.status(runs[-1])["rounds"])
        for run in runs:
            assert here.ended(run)["state"] == "finished", here.logs()


def test_a_drained_client_gets_no_message(tmp_path):
    """The app gets the reason."""
    body = """
    [node] = nodes_of(grid)
    Path("begun").touch()
    while not Path("go").exists():
        time.sleep(0.02)
    assert list(grid.get_node_ids()) == []
    [reply] = grid.send_and_receive([ask(node)])
    assert "excluded" in reply.error.reason, reply.error.reason
    """
    with serving(tmp_path, body) as here:
        run = submit(here)
        folder = here.server / "flower" / run / "files"
        here.waited((folder / "begun").exists)
        here.call("client", "drain", "c0", "--yes", "--dir", here.server)
        (folder / "go").touch()
        assert here.ended(run)["state"] == "finished", here.logs()
