"""Stock SuperNodes of flwr beside agents of this project, in rounds of one server, over TLS."""

import signal
import time
from fractions import Fraction

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: make flower")
pytest.importorskip("sqlalchemy", reason="needs the server's extra")

from support.flower import APPS, import_app
from support.supernodes import bridged

pytestmark = [pytest.mark.e2e, pytest.mark.long]

APP = APPS / "plainmean"
RUN = """
name = "mean"
rounds = {rounds}
evaluate = {evaluate}
[cohort]
goal = {goal}
quorum = {quorum}
deadline_s = {deadline_s}
[train]
epochs = 1
learning_rate = 1.0
[config]
slow = {slow}
"""


def run_of(rounds, goal, quorum=None, *, deadline_s=300, slow=0.0, evaluate="false"):
    return RUN.format(
        rounds=rounds, goal=goal, quorum=quorum or goal, deadline_s=deadline_s, slow=slow,
        evaluate=evaluate,
    )  # fmt: skip


def mean_of(nodes, rounds):
    """The model by hand, in rational numbers: the sum of the rounds' weighted means."""
    app = import_app("plainmean", "client_app")
    weights = {node: app.num_examples(node) for node in nodes}
    total = sum(
        Fraction(app.step(node, number)) * weight
        for node, weight in weights.items()
        for number in range(1, rounds + 1)
    )
    return total / sum(weights.values())


def initial(here):
    first = here.directory / "init.safetensors"
    here.call("model", "init", "--flower", "plainmean.client_app:initial", "--out", first)
    return first


def rows(here):
    listed = here.call("client", "list", "--dir", here.server)["clients"]
    return {row["name"]: row for row in listed}


def rounds_of(here, run):
    return len(here.status(run)["rounds"])


@pytest.mark.longest
def test_two_supernodes_and_two_agents_survive_kills_and_count_once(tmp_path):
    """Ten rounds; SIGKILL of the server, a SuperNode that trains, and the bridge; its restart."""
    with bridged(tmp_path, APP) as (here, bridge):
        first = initial(here)
        keys = [bridge.enrol(f"node-{number}") for number in range(2)]
        bridge.begin()
        for number, key in enumerate(keys):
            bridge.attend(f"node-{number}", number, 4, key)
        for number in (2, 3):
            here.attend("plainmean.client_app:app", number, 4)
        run = here.submit(run_of(10, goal=4, slow=1.0), first)

        here.waited(lambda: rounds_of(here, run) >= 3)
        here.kill_server()
        time.sleep(1.0)
        here.serve_again()

        here.waited(lambda: rounds_of(here, run) >= 5)
        seen = bridge.received("node-0")
        here.waited(lambda: bridge.received("node-0") > seen)
        bridge.end("node-0")
        bridge.attend("node-0", 0, 4, keys[0])

        here.waited(lambda: rounds_of(here, run) >= 7)
        seen = bridge.received("node-1")
        here.waited(lambda: bridge.received("node-1") > seen)
        bridge.kill()
        bridge.begin()

        here.waited(lambda: rounds_of(here, run) >= 9)
        seen = bridge.received("node-1")
        here.waited(lambda: bridge.received("node-1") > seen)
        bridge.kill(signal.SIGTERM)
        bridge.begin()

        status = here.ended(run)
        assert status["state"] == "finished", here.logs()
        model, clients = here.model(), rows(here)
        assert not bridge.objects()
        once = bridge.received("node-1")
    for value in model.values():
        assert {Fraction(each) for each in value.flat} == {mean_of(range(4), 10)}
    assert {row["counted"] for row in clients.values()} == {10}
    kinds = {name: row["own_labels"].get("kind") for name, row in clients.items()}
    assert kinds == {"node-0": "supernode", "node-1": "supernode", "c2": None, "c3": None}
    assert once == 10  # what it trained while the server or the bridge was away was not lost


def test_runs_evaluate_on_supernodes(tmp_path):
    """The mean of the model that a round begins with; a run's description says what they lack."""
    with bridged(tmp_path, APP) as (here, bridge):
        first, key = initial(here), bridge.enrol("node-0")
        bridge.begin()
        bridge.attend("node-0", 0, 1, key)
        here.waited(lambda: rows(here)["node-0"]["online"])
        run = here.submit(run_of(2, goal=1, evaluate="true"), first)
        status = here.ended(run)
        assert status["state"] == "finished", here.logs()
        notes = here.call("run", "describe", tmp_path / "run.toml", "--dir", here.server)["notes"]
    assert [note[:40] for note in notes] == ["1 client is a SuperNode of Flower. There"]
    values = [row["evaluation"]["values"]["b"] for row in status["rounds"] if row["evaluation"]]
    assert values == [0.0, 0.25, 0.75]


def test_a_client_fn_trains_on_supernodes_as_by_hand(tmp_path):
    """The older messages: lists of arrays; compared with the same steps here."""
    old, nodes, rounds = import_app("oldquick", "client_app"), 2, 2
    with bridged(tmp_path, APPS / "oldquick", "client_fn = true\n") as (here, bridge):
        first = tmp_path / "init.safetensors"
        here.call("model", "init", "--flower", "oldquick.client_app:initial", "--out", first)
        bridge.begin()
        for number in range(nodes):
            key = bridge.enrol(f"node-{number}")
            bridge.attend(f"node-{number}", number, nodes, key)
        settings = run_of(rounds, goal=nodes).replace("epochs = 1", "epochs = 2")
        status = here.run(settings.replace("slow = 0.0", ""), first)
        assert status["state"] == "finished", here.logs()
        ours = here.model()
    model = old.initial()
    for number in range(1, rounds + 1):
        asked = {"lr": 1.0, "server_round": number}
        found = [old.Client(n, nodes, 2).fit(model, asked) for n in range(nodes)]
        total = sum(count for _, count, _ in found)
        model = [
            sum(weights[place] * (count / total) for weights, count, _ in found)
            for place in range(2)
        ]
    for place, value in enumerate(model):
        np.testing.assert_allclose(ours[str(place)], value, atol=1e-6, rtol=0)


@pytest.mark.longest
def test_wrong_shapes_and_absence_hold_no_round_past_its_deadline(tmp_path):
    """One SuperNode answers with wrong shapes, one is killed in its training and stays away."""
    with bridged(tmp_path, APP) as (here, bridge):
        first = initial(here)
        keys = [bridge.enrol(f"node-{number}") for number in range(3)]
        bridge.begin()
        for number, key in enumerate(keys):
            more = "broken=true" if number == 1 else ""
            bridge.attend(f"node-{number}", number, 3, key, more)
        here.waited(lambda: sum(row["online"] for row in rows(here).values()) == 3)
        run = here.submit(run_of(1, goal=3, quorum=1, deadline_s=20, slow=2.0), first)
        here.waited(lambda: bridge.received("node-2"))
        begun = time.monotonic()
        bridge.end("node-2")
        status = here.ended(run)
        took_s = time.monotonic() - begun
        assert status["state"] == "finished", here.logs()
        clients, model, logs = rows(here), here.model(), here.logs()
        here.waited(lambda: not bridge.objects())
    assert {name: row["counted"] for name, row in clients.items()} == {
        "node-0": 1, "node-1": 0, "node-2": 0,
    }  # fmt: skip
    assert clients["node-1"]["failed"] == 1
    assert "shape (2, 3)" in logs
    assert took_s < 30
    np.testing.assert_array_equal(model["w"], np.full((2, 3), 0.25))


def test_only_supernodes_with_an_enrolled_key_are_served(tmp_path):
    """Others end and say why; one that is enrolled meanwhile is served, until it is revoked."""
    with bridged(tmp_path, APP) as (here, bridge):
        bridge.begin()
        key = bridge.key("stranger")
        for name, its_key, words in (
            ("stranger", key, "is not enrolled"),
            ("keyless", None, "is not enrolled"),
        ):
            process = bridge.attend(name, 0, 1, its_key)
            here.waited(lambda process=process: process.poll() is not None)
            text = (tmp_path / f"{name}.log").read_text()
            assert words in " ".join(text.split()), text
        assert not rows(here)
        bridge.enrol("stranger")
        bridge.attend("stranger", 0, 1, key)
        here.waited(lambda: rows(here).get("stranger", {}).get("online"))
        here.call("client", "revoke", "stranger", "--yes", "--dir", here.server)
        here.waited(lambda: bridge.supernodes["stranger"].poll() is not None)
