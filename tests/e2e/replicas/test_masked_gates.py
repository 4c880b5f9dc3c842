"""Masked rounds of three servers, which all serve devices: the sums are those of one server."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from fedloom.protocol.errors import Code
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.engine import SessionState
from fedloom.server.ledger.tables import cohorts, gates, inbox, mail, spool_objects
from support import federation as wire
from support.marks import sampled
from support.masked_devices import BODY
from support.masked_replicas import PATIENT, MaskedReplicas, devices_of, play
from support.masked_sums import ZEROS, mean_of
from support.patience import PATIENCE_S
from support.replicas import DEVICES, rows, spec
from support.site_servers import Cluster, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("credentials")]


@pytest.fixture
def gated(tmp_path, database, s3):
    """Makes three replicas."""
    made = []

    def make(kills=None, **settings):
        url, store = database.create(tmp_path.name), s3.url(tmp_path.name)
        made.append(MaskedReplicas(tmp_path, url, store, kills=kills, **settings))
        return made[-1]

    yield make
    for replicas in made:
        replicas.close()


def check(replicas, run, devices, counted=None):
    """The model has the bits of the sum of these devices, in rationals; nothing is left."""
    counted = devices if counted is None else counted
    row, sessions, model = replicas.result(run)
    assert row.state == "finished", row.reason
    assert {session.state for session in sessions} == {SessionState.DONE}
    survivors = {client for session in sessions for client in session.masked}
    assert survivors == {device.name for device in counted}
    wanted = mean_of(counted, counted[0].task.masking.exponent)
    for name in ZEROS:
        assert model[name].tobytes() == wanted[name].tobytes(), name
    driver = replicas.driver
    wait_until(lambda: not rows(driver, inbox) and not rows(driver, mail), "messages are read")
    wait_until(lambda: not rows(driver, spool_objects), "bodies are deleted")
    for replica in [each for each in replicas.all if each.process.poll() is None]:
        files = (replica.state / "spool").glob
        wait_until(lambda files=files: not list(files(f"{run}.*")), "copies are deleted")


@pytest.mark.long
def test_masked_bodies_at_gates_give_the_sum_of_one_server(gated):
    """Each replica has devices; their messages and bodies pass through it."""
    replicas = gated()
    devices = devices_of(replicas)
    run = play(replicas, devices)
    check(replicas, run, devices)
    at = Counter(replicas.gate_of(device.name).name for device in devices)
    assert len(at) == 3, at
    assert all(not device.refusals for device in devices)
    seen = {row["client"]: row["bytes_up"] for row in rows(replicas.first, cohorts)}
    assert all(seen[device.name] for device in devices), "gates tell what they received"
    assert len(rows(replicas.first, gates)) == 2


AGENTS = spec(
    rounds=3, evaluate=False, weighting="uniform", max_abs=0.25, strategy={"name": "fedavg"},
    cohort=PATIENT["cohort"] | {"goal": len(DEVICES), "quorum": len(DEVICES)},
    masking={
        "group": 8, "min_group": 3, "sum_bits": 32, "precision": 1.0, "phase_s": 60.0,
        "upload_s": 60.0, "session_s": 300.0,
    },
)  # fmt: skip


def run_agents(cluster, server):
    """Agents whose owners admit small sessions; their settings are new."""
    configs = cluster.enrol(server, DEVICES)
    for config in configs:
        Path(config).with_name("policy.toml").write_text("[masking]\nmin_group = 3\n")
    cluster.run_devices(server, configs)


@pytest.mark.long
def test_agents_of_masked_rounds_at_gates_give_the_bits_of_one_server(gated, tmp_path, small_model):
    """Three rounds; a gate dies in the second, after it has accepted a body."""
    alone, devices = Cluster(tmp_path / "alone"), Cluster(tmp_path)
    alone.directory.mkdir()
    replicas = gated({1: "accept.after:2"})
    try:
        server = alone.server("one").start()
        run_agents(alone, server)
        wanted = server.ended(server.submit(AGENTS, small_model)).model
        run_agents(devices, replicas.first)
        wait_until(lambda: replicas.driver.online() == len(DEVICES), "devices attend")
        run = replicas.first.submit(AGENTS, small_model)
        found = replicas.first.ended(run)
        replicas.all[1].wait_for_kill()
    finally:
        alone.close()
        devices.close()
    assert found.model == wanted
    assert found.committed == 3
    for number in (1, 2, 3):
        [session] = replicas.first.ledger(lambda ledger, n=number: ledger.sessions(run, n))
        assert sorted(session.masked) == sorted(DEVICES)


@pytest.mark.parametrize("place", ["accept.after", "mail.taken:3"])
@pytest.mark.long
def test_a_gate_that_is_killed_loses_no_accepted_body(gated, place):
    """Its devices go on at other replicas, with the secrets that they hold."""
    replicas = gated({1: place})
    devices = devices_of(replicas)
    run = play(replicas, devices)
    replicas.all[1].wait_for_kill()
    check(replicas, run, devices)


@pytest.mark.parametrize(
    "place",
    sampled(
        [
            "masking.opened",
            "masking.moved:1",
            "masking.moved:4",
            "inbox.taken:9",
            "masking.unmasked",
        ],
        2,
    ),
)
@pytest.mark.long
def test_a_driver_that_is_killed_in_a_masked_round_is_replaced(gated, place):
    """A gate drives; sessions go on from the rows, and bodies at gates stay accepted."""
    replicas = gated({0: place})
    devices = devices_of(replicas)
    run = play(replicas, devices)
    replicas.first.wait_for_kill()
    check(replicas, run, devices)


@pytest.mark.long
def test_an_upload_that_moves_to_a_gate_a_second_body_and_a_late_one(gated):
    """The first counts whole, the second is refused, and the third is deleted unread."""
    replicas = gated()
    driver, _, other = replicas.all
    moving, late, *others = devices_of(replicas, [[1], [2], [0], [1], [2]])
    late.stops = BODY
    moving.cut_short = driver

    async def during(run):
        async with asyncio.timeout(PATIENCE_S):
            while not (moving.answers and any(each.answers for each in others)):
                await asyncio.sleep(0.02)
        changed = fleet_pb2.UpdateHeader.FromString(moving.header.SerializeToString())
        changed.crc32c ^= 1
        moving.second = await wire.upload(
            replicas.channel(moving.identity, other), changed, [moving.body.tobytes()]
        )
        session = SessionState.MASKING
        async with asyncio.timeout(PATIENCE_S):
            while session is SessionState.MASKING:
                await asyncio.sleep(0.05)
                [found] = await asyncio.to_thread(
                    driver.ledger, lambda ledger: ledger.sessions(run, 1)
                )
                session = found.state
        late.stops = None
        await late.upload()

    masking = PATIENT["masking"] | {"upload_s": 6.0}
    run = play(replicas, [moving, late, *others], during, masking=masking)
    assert moving.partial.code is Code.TRUNCATED
    assert moving.answers[-1].replies[-1].HasField("accepted")
    assert moving.second.code is Code.CONFLICTING_UPDATE
    assert late.answers[-1].code in (Code.ROUND_CLOSED, Code.STALE_ROUND, Code.NOT_IN_COHORT)
    check(replicas, run, [moving, *others])
