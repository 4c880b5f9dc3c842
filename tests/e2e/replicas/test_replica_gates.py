"""Three servers of one ledger: one drives, and all serve devices, which come through haproxy."""

import shutil
import signal
import socket
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace

import pytest

from fedloom.protocol.errors import UnavailableError, UsageError
from fedloom.server.config import split_address, write
from fedloom.server.ledger.replicas.gate_queues import GATE_S
from fedloom.server.ledger.tables import clients, cohorts, gates, inbox, mail, updates
from fedloom.server.storage.objects.parts import PART_BYTES
from support.marks import sampled
from support.patience import PATIENCE_S
from support.ports import steady_port
from support.relay import Relay
from support.replicas import (
    DEVICES,
    Replica,
    Replicas,
    buffers,
    check_all_counted,
    check_buffers,
    has_rounds,
    metrics,
    rows,
    spec,
)
from support.site_servers import Cluster, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.usefixtures("credentials")]


@pytest.fixture
def gated(tmp_path, database, s3):
    """Makes three replicas with connected devices, and the cluster of the devices."""
    made, cluster = [], Cluster(tmp_path)

    def make(kills=None, constants=None):
        url, store = database.create(tmp_path.name), s3.url(tmp_path.name)
        replicas = Replicas(tmp_path, url, store, 3, kills=kills, gates=True, constants=constants)
        made.append(replicas)
        cluster.run_devices(replicas.first, cluster.enrol(replicas.first, DEVICES))
        wait_until(lambda: replicas.driver.online() == len(DEVICES), "devices attend")
        return replicas

    yield make
    cluster.close()
    for replicas in made:
        replicas.close()


def attendances(replica, client):
    return replica.log().count(f" {client} attends")


def shown(replica):
    """The streams at each replica, as operators see them."""
    found = replica.control.get("server")["replicas"]
    assert [each["drives"] for each in found] == [True, False, False]
    return sorted(each["streams"] for each in found)


def test_devices_at_gates_give_the_bits_of_one_server(gated, alone, small_model):
    """The proxy spreads them; the driver knows all of them and counts each once."""
    replicas = gated()
    at = Counter(replicas.gate_of(client) for client in DEVICES)
    assert set(at) == set(replicas.all)
    wait_until(lambda: shown(replicas.first) == sorted(at.values()), "operators see who is where")
    run = replicas.first.submit(spec(), small_model)
    assert replicas.first.ended(run).model == alone
    check_all_counted(replicas.first, run)
    found = rows(replicas.first, updates)
    at_gates = [row for row in found if row["gate"] and row["file"]]
    assert at_gates
    assert all(row["sealed_in"] for row in at_gates), "the driver folded none of them"
    records = rows(replicas.first, cohorts)
    assert {row["phase"] for row in records} == {"reported"}
    sent = {(row["round"], row["client"]): row["size_bytes"] for row in found}
    assert {(row["round"], row["client"]): row["bytes_up"] or 0 for row in records} == sent
    away = [row for row in records if replicas.gate_of(row["client"]) is not replicas.first]
    assert all(row["bytes_down"] for row in away)
    assert not rows(replicas.first, inbox)
    assert len(rows(replicas.first, gates)) == 2
    counted = Counter(row["gate"] for row in found)
    told = [metrics(each) for each in replicas.all[1:]]
    accepted = [each["fedloom_updates_accepted_total"] for each in told]
    assert sorted(accepted) == sorted(counted[gate["id"]] for gate in rows(replicas.first, gates))
    received = sum(each["fedloom_received_bytes_total"] for each in told)
    assert received == sum(row["size_bytes"] for row in found if row["gate"])


@pytest.mark.parametrize(
    "place",
    sampled(["upload.synced", "accept.after:2", "mail.taken:3", "seal.stored", "seal.noted:2"], 2),
)
def test_a_killed_gate_is_replaced(gated, alone, small_model, place):
    """Its devices come to other replicas; each update counts once, and none is lost."""
    replicas = gated({1: place})
    killed = replicas.all[1]
    run = replicas.first.submit(spec(), small_model)
    killed.wait_for_kill()
    assert replicas.first.ended(run).model == alone
    check_all_counted(replicas.first, run)
    wait_until(lambda: len(rows(replicas.first, gates)) == 1, "the gate is struck out")
    assert not rows(replicas.first, mail)


@pytest.mark.parametrize("place", ["", "seal.noted:2"])
def test_several_sums_of_a_gate_give_the_same_bits(gated, alone, small_model, place):
    """Each has one update, as if it were full; a gate that is killed has sealed some of them."""
    full = {"fedloom.server.replicas.gate_sums.MOST_UPDATES": 1}
    replicas = gated({1: place} if place else None, constants=full)
    run = replicas.first.submit(spec(), small_model)
    assert replicas.first.ended(run).model == alone
    check_all_counted(replicas.first, run)
    if place:
        replicas.all[1].wait_for_kill()
    at_gates = [row for row in rows(replicas.first, updates) if row["gate"] and row["file"]]
    sums = Counter(row["sealed_in"] for row in at_gates if row["sealed_in"])
    assert set(sums.values()) == {1}
    assert place or sums.total() == len(at_gates)


@pytest.mark.parametrize(
    "kills", [{1: "accept.after:3"}, {0: "round.closing:3"}], ids=["gate", "driver"]
)
def test_buffers_at_gates_have_the_bits_of_their_rows(gated, small_model, kills):
    """Stale ones count less; gates add them up, and what a killed server knew counts once."""
    replicas = gated(kills)
    [killed] = (replicas.all[number] for number in kills)
    run = replicas.first.submit(buffers(rounds=6), small_model)
    killed.wait_for_kill()
    driver = replicas.driver
    driver.ended(run)
    staleness = check_buffers(driver, run, small_model)
    assert staleness[1], "updates of an older model"
    at_gates = [row for row in rows(driver, updates) if row["gate"]]
    assert any(row["sealed_in"] for row in at_gates)
    wait_until(lambda: not rows(driver, inbox), "the driver reads every message")


@pytest.mark.parametrize("place", sampled(["inbox.taken:5", "round.opened:2", "seal.merged:2"], 2))
def test_a_killed_driver_is_replaced_by_a_gate(gated, alone, small_model, place):
    """The devices of both gates keep their streams, and the run its bits."""
    replicas = gated({0: place})
    before = {client: replicas.gate_of(client) for client in DEVICES}
    run = replicas.first.submit(spec(), small_model)
    replicas.first.wait_for_kill()
    driver = replicas.driver
    assert driver.ended(run).model == alone
    check_all_counted(driver, run)
    kept = {client: gate for client, gate in before.items() if gate is not replicas.first}
    assert {*kept.values()} == {*replicas.all[1:]}
    for client, gate in kept.items():
        assert attendances(gate, client) == 1, gate.log()
    wait_until(lambda: metrics(driver)["fedloom_gates"] == 1, "it counts the other gate alone")
    at = Counter(replicas.gate_of(client) for client in DEVICES)
    shown = {each["drives"]: each["streams"] for each in driver.control.get("server")["replicas"]}
    [other] = {*at} - {driver}
    assert shown == {True: at[driver], False: at[other]}


def test_an_upload_at_a_gate_goes_on_while_the_driver_changes(tmp_path, database, s3, large_model):
    """Its bytes are kept: the server that begins to drive leaves bodies to gates."""
    url, store = database.create(tmp_path.name), s3.url(tmp_path.name)
    replicas, cluster = Replicas(tmp_path, url, store, 3, gates=True), Cluster(tmp_path)
    with ExitStack() as stack:
        stack.callback(replicas.close)
        stack.callback(cluster.close)
        held = [
            stack.enter_context(Relay(split_address(each.settings.fleet, "fleet")[1]))
            for each in replicas.all[1:]
        ]
        for relay, name in zip(held, DEVICES, strict=False):
            config = replicas.first.enrol(name)
            config.write_text(config.read_text().replace(f":{replicas.port}", f":{relay.port}", 1))
            relay.cut_after("up", PART_BYTES + 200_000, how="hold")
            cluster.run_devices(replicas.first, [str(config)])
        wait_until(lambda: replicas.driver.online() == 2, "devices attend")
        run = replicas.first.submit(buffers(rounds=2), large_model)
        wait_until(lambda: all(relay.has_cut for relay in held), "both uploads are under way")
        before = {row["id"] for row in rows(replicas.first, gates)}
        replicas.first.kill()
        driver = replicas.driver
        for relay in held:
            relay.resume()
        driver.ended(run)
        check_buffers(driver, run, large_model)
        assert {row["id"] for row in rows(driver, gates)} == before, "also that of the new driver"
        found = {row["gate"]: row for row in rows(driver, updates) if row["round"] == 1}
        assert {*found} == before, "they have received and accepted the updates"
        members = {
            row["client"]: row for row in rows(driver, cohorts) if row["round"] == 1
        }  # fmt: skip
        for update in found.values():
            member = members[update["client"]]
            assert member["phase"] == "reported"
            sent = member["bytes_up"] or 0  # unknown, if the word of it was lost
            assert sent <= update["size_bytes"], "nothing was sent again"


def test_a_gate_that_stood_still_is_struck_out(gated, alone, small_model):
    """Its devices move; what it would still write is refused, and it ends."""
    replicas = gated()
    still = replicas.all[2]
    moved = [client for client in DEVICES if replicas.gate_of(client) is still]
    run = replicas.first.submit(spec(rounds=6), small_model)
    wait_until(lambda: has_rounds(replicas.first, run, 2), "a round is open")
    still.kill(signal.SIGSTOP)
    stopped = time.monotonic()
    wait_until(lambda: len(rows(replicas.first, gates)) == 1, "the gate is struck out")
    assert time.monotonic() - stopped > GATE_S - 2
    wait_until(
        lambda: all(replicas.gate_of(client) is not still for client in moved), "devices move"
    )
    assert replicas.first.ended(run).committed == 6
    check_all_counted(replicas.first, run)
    assert still.continued() == UnavailableError.exit_code
    # What it was waiting for as it stopped decides which it sees first.
    log = still.log()
    assert "struck this gate out" in log or "the ledger has not answered" in log
    assert replicas.first.drives


def test_a_stopped_gate_leaves_at_once(gated, alone, small_model):
    """SIGTERM, in the middle of a run: no round fails."""
    replicas = gated()
    run = replicas.first.submit(spec(), small_model)
    wait_until(lambda: has_rounds(replicas.first, run, 2), "a round is open")
    leaving = replicas.all[1]
    leaving.stop()
    assert leaving.process.returncode == 0
    assert len(rows(replicas.first, gates)) == 1
    leaving.launch("")
    wait_until(leaving.serves, "the gate is back")
    assert replicas.first.ended(run).model == alone
    check_all_counted(replicas.first, run)


def test_streams_move_when_they_are_old(gated, alone, small_model):
    """No device fails and no update is lost; a replica that was restarted gets devices again."""
    replicas = gated(constants={"fedloom.server.fleet.attend.AGE_S": 3.0})
    run = replicas.first.submit(spec(), small_model)
    restarted = replicas.all[1]
    restarted.stop()
    restarted.launch("")
    wait_until(restarted.serves, "the gate is back")
    wait_until(lambda: metrics(restarted).get("fedloom_streams"), "devices come to it")
    assert replicas.first.ended(run).model == alone
    check_all_counted(replicas.first, run)
    assert {row["phase"] for row in rows(replicas.first, cohorts)} == {"reported"}
    assert not any(row["failures"] for row in rows(replicas.first, clients))
    for client in DEVICES:  # those that came late are old only after the run

        def moves(client=client):
            return sum(attendances(each, client) for each in replicas.all) > 1

        wait_until(moves, f"{client} moves")


def test_a_device_is_revoked_at_its_gate(gated):
    """By a command at the driver: its stream there ends with the reason."""
    replicas = gated()
    gate = replicas.all[1]
    client = next(each for each in DEVICES if replicas.gate_of(each) is gate)
    replicas.first.control.post(f"clients/{client}/revoke", body={"reason": "lost"})
    wait_until(lambda: f"{client} left" in gate.log(), "its stream ends")
    assert f"refused {client} (run , round 0): revoked" in gate.log()


def test_a_run_that_gates_cannot_serve_is_refused(gated, small_model):
    replicas = gated()
    with pytest.raises(UsageError, match="got one with sites = true"):
        replicas.first.submit(spec(sites=True), small_model)


def test_a_gate_that_is_cut_off_from_the_database_ends(tmp_path, database, s3, small_model, alone):
    """Silently, so that its connections stay: it acknowledges nothing, and its devices move."""
    with Relay(database.port) as relay:
        url, store = database.create(tmp_path.name), s3.url(tmp_path.name)
        through = url.replace(f":{database.port}/", f":{relay.port}/")
        replicas = Replicas(tmp_path, url, store, 3, gates=True, databases={1: through})
        cluster, gate = Cluster(tmp_path), replicas.all[1]
        try:
            cluster.run_devices(replicas.first, cluster.enrol(replicas.first, DEVICES))
            wait_until(lambda: replicas.driver.online() == len(DEVICES), "devices attend")
            run = replicas.first.submit(spec(), small_model)
            wait_until(lambda: has_rounds(replicas.first, run, 1), "a round is open")
            relay.cut("silent")
            assert gate.process.wait(PATIENCE_S) == UnavailableError.exit_code
            assert "the ledger has not answered" in gate.log()
            assert replicas.first.ended(run).model == alone
            check_all_counted(replicas.first, run)
        finally:
            cluster.close()
            replicas.close()


def test_a_gate_that_cannot_listen_or_that_nobody_reads_says_so(tmp_path, database, s3):
    """Its port is taken; or the server that drives has no gates."""
    settings = {"database": database.create(tmp_path.name), "store": s3.url(tmp_path.name)}
    first = Replica(tmp_path, "first", steady_port(), **settings)
    second = Replica(tmp_path, "second", steady_port(), gates=True, **settings)
    shutil.rmtree(second.state / "pki")
    try:
        first.start()
        shutil.copy(first.state / "master.key", second.state)
        second.launch("")
        wait_until(lambda: "gates = false: all replicas need the same" in second.log(), "it warns")
        assert not second.serves()
        first.stop()
        wait_until(lambda: second.drives, "it drives, with gates")
        write(first.state, replace(first.settings, gates=True))
        with socket.create_server(split_address(first.settings.fleet, "fleet")):
            first.launch("")
            assert first.process.wait(PATIENCE_S) == UnavailableError.exit_code
        assert f"cannot listen on {first.settings.fleet}" in first.log()
    finally:
        first.stop()
        second.stop()
