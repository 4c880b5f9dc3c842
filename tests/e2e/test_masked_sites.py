"""Sites whose devices mask: the parent gets the sum of each site, the site those of its sessions.

All servers and devices are processes of their own, with certificates.
"""

import asyncio
import json
import time
from dataclasses import replace
from fractions import Fraction
from hashlib import sha256

import numpy as np
import pytest

from fedloom.protocol.errors import UsageError
from fedloom.protocol.task_description import FileRef, task_seed
from fedloom.protocol.task_message import to_message
from fedloom.protocol.tensors.container import write_file
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.engine import RoundKind, SessionState
from fedloom.server.planning.spec import parse
from fedloom.server.planning.task import describe
from fedloom.server.rounds.upstream.collector import Collector, NoDevicesError
from support import masked_widths
from support.federation import Federation
from support.masked_devices import AGREEMENT, BODY, Device
from support.masked_sites import DeviceFleet, MaskedCluster, NoisyDevice, played, spec
from support.masked_sums import MASKED, ZEROS, mean_of, update
from support.site_servers import RUN_SEED, wait_until, write_model

pytestmark = [pytest.mark.e2e, pytest.mark.long]

SITES = {"north": ["one", "two", "three"], "south": [f"s{n}" for n in range(7)]}
GOAL = sum(map(len, SITES.values()))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    write_model(path, 2_003)
    return path


@pytest.fixture
def cluster(tmp_path):
    made = MaskedCluster(tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="module")
def flat(model, tmp_path_factory):
    """The rounds and the last model of a server that masks in sessions of all devices."""
    cluster = MaskedCluster(tmp_path_factory.mktemp("flat"))
    try:
        server = cluster.server("flat").start()
        names = [f"{site}.{name}" for site, own in SITES.items() for name in own]
        cluster.start_devices(server, names)
        run = server.submit(spec(GOAL, sites=False), model)
        row = server.ended(run)
        return server.rounds(run), server.model(row.model)
    finally:
        cluster.close()


def with_sites(cluster, kill=""):
    """A running parent with two sites and their devices; the first site dies where `kill` says."""
    parent = cluster.server("parent").start()
    for site, names in SITES.items():
        made = cluster.site(parent, site, len(names), kill=kill if site == "north" else "")
        cluster.start_devices(made, names, site)
    wait_until(lambda: parent.online() == len(SITES), "sites attend")
    return parent


def check_same(cluster, parent, run, flat):
    """Model, rounds and metrics are those of one server; the sites know what counted."""
    flat_rounds, flat_model = flat
    row = parent.ended(run)
    rounds = parent.rounds(run)
    assert parent.model(row.model) == flat_model
    assert [r.model_out for r in rounds] == [r.model_out for r in flat_rounds]
    for ours, theirs in zip(rounds, flat_rounds, strict=True):
        assert ours.accepted == theirs.accepted == GOAL
        assert (ours.training, ours.evaluation) == (theirs.training, theirs.evaluation)
    for name, devices in SITES.items():
        site = cluster.servers[name]
        assert site.ended(run).committed == row.committed == 2
        found = [(r.state, r.kind, r.accepted) for r in site.rounds(run)]
        assert found == [("committed", r.kind, len(devices)) for r in rounds]
        sessions = site.ledger(lambda ledger: ledger.sessions(run, 1))
        assert [len(s.members) for s in sessions] == ([3] if name == "north" else [4, 3])
    assert parent.ledger(lambda ledger: ledger.sessions(run, 1)) == []


def test_the_model_has_the_bits_of_a_server_that_masks_all_devices(cluster, model, flat):
    """Two rounds of training and one of evaluation; no device's update is at its site."""
    parent = with_sites(cluster)
    run = parent.submit(spec(GOAL), model)
    check_same(cluster, parent, run, flat)


# ---- devices that do what a test says ------------------------------------------------------------

ONE = {**MASKED, "rounds": 1, "evaluate": False, "strategy": {"name": "fedavg"}}
PATIENT = MASKED["masking"] | {"phase_s": 20.0, "upload_s": 20.0, "session_s": 120.0}


def one_round(goal, quorum, **changes):
    """A run of one round of devices whose weights are numbers of examples."""
    cohort = {"goal": goal, "quorum": quorum, "deadline_s": 1200.0, "patience_s": 3.0}
    own = {"weighting": "examples", "max_weight": 16.0, "cohort": cohort, "masking": PATIENT}
    return spec(goal, **{**ONE, **own, **changes})


@pytest.fixture
def zeros(tmp_path):
    path = tmp_path / "zeros.safetensors"
    write_file(path, ZEROS)
    return path


def fleet_of(cluster, parent, site, names, *, registered=0, make=Device, kill=""):
    """A running site, and devices of it that are not started."""
    server = cluster.site(parent, site, registered or len(names), kill=kill)
    fleet, number = DeviceFleet(server), len(cluster.servers)
    weight = {} if make is NoisyDevice else {"weight": number}
    its = [make(fleet, n, update(10 * number + i), **weight) for i, n in enumerate(names)]
    return server, its


def check_bits(parent, run, counted):
    """The parent's model is the mean of these devices' integers, in rationals."""
    model = parent.params(parent.ledger(lambda ledger: ledger.run(run)).model)
    wanted = mean_of(counted, counted[0].task.masking.exponent)
    for name in ZEROS:
        assert model[name].tobytes() == wanted[name].tobytes(), name


def finished(parent, run):
    return lambda: parent.ledger(lambda ledger: ledger.run(run)).state == "finished"


def test_a_drop_out_is_left_out_and_a_site_without_a_session_says_why(cluster, zeros):
    """The parent has the exact sum of the others; their site knows no more than sessions' sums."""
    parent = cluster.server("parent").start()
    north, devices = fleet_of(cluster, parent, "north", [f"d{i}" for i in range(5)])
    _, others = fleet_of(cluster, parent, "ward", ["w0", "w1"], registered=3)
    lab, more = fleet_of(cluster, parent, "lab", ["l0", "l1", "l2"])
    devices[2].stops = BODY
    wait_until(lambda: parent.online() == 3, "sites attend")
    masking = PATIENT | {"upload_s": 8.0}
    run = parent.submit(one_round(11, 7, masking=masking), zeros)
    played([*devices, *others, *more], finished(parent, run), "the run ends")
    counted = [*devices[:2], *devices[3:], *more]
    check_bits(parent, run, counted)
    [row] = parent.rounds(run)
    assert row.accepted == 7
    assert row.training == {"num_examples": 4 * 2 + 3 * 4, "values": {"loss": 0.25}}
    members = {m.client: m for m in parent.ledger(lambda ledger: ledger.cohort(run, 1))}
    assert members["ward"].phase == "declined"
    assert "sits the round out: 2 devices are connected" in members["ward"].reason
    assert "at least 3 (masking.min_group)" in members["ward"].reason
    for site, its in ((north, devices), (lab, more)):
        [session] = site.ledger(lambda ledger: ledger.sessions(run, 1))
        assert session.state is SessionState.DONE
        assert session.members == [device.name for device in its]
        accepted = site.ledger(lambda ledger: ledger.accepted(run, 1))
        assert {row.client for row in accepted} == {d.name for d in its if d in counted}
        assert all(device.told[-1] == "done" for device in its if device in counted)


@pytest.mark.longest
def test_weights_of_narrow_updates_pass_by_coordinate(cluster, zeros):
    """A site with a session of each width sends a weight for each coordinate."""
    parent = cluster.server("parent").start()
    north = cluster.site(parent, "north", 7)
    fleet = DeviceFleet(north)
    devices = [masked_widths.device(fleet, name) for name in masked_widths.names(3, 4)]
    wait_until(lambda: parent.online() == 1, "the site attends")
    masking = PATIENT | {"sum_bits": 64}
    run = parent.submit(one_round(7, 7, masking=masking, train=masked_widths.TRAIN), zeros)
    played(devices, finished(parent, run), "the run ends")
    model = parent.params(parent.ledger(lambda ledger: ledger.run(run)).model)
    for name, wanted in masked_widths.mean_of(devices).items():
        assert model[name].tobytes() == wanted.tobytes(), name
    sessions = north.ledger(lambda ledger: ledger.sessions(run, 1))
    assert sorted(len(session.members) for session in sessions) == [3, 4]


@pytest.mark.longest
def test_a_region_adds_the_sums_of_the_sessions_of_its_wards(cluster, zeros):
    """Three levels: the places of sites are in the seeds of devices, and the bits are exact."""
    top = cluster.server("top").start()
    region = cluster.site(top, "region", 6)
    _, first = fleet_of(cluster, region, "first", ["a0", "a1", "a2"])
    _, second = fleet_of(cluster, region, "second", ["b0", "b1", "b2"])
    wait_until(lambda: top.online() == 1 and region.online() == 2, "sites attend")
    run = top.submit(one_round(6, 6), zeros)
    played([*first, *second], finished(top, run), "the run ends")
    check_bits(top, run, [*first, *second])
    [row], [its] = top.rounds(run), region.rounds(run)
    assert row.accepted == its.accepted == 6
    means = {"num_examples": 3 * 3 + 3 * 4, "values": {"loss": 0.25}}
    assert row.training == its.training == means
    assert {device.task.masking.site for device in first} == {"region/first"}
    for device in (*first, *second):
        name = f"{device.task.masking.site}/{device.name}"
        assert device.task.seed == task_seed(RUN_SEED, 1, name)


STEPS = ("masking.unmasked:1", "site.sum.stored:1", "site.sum.sending:1")
"""Of a site's masked round, in order."""


def test_a_site_that_is_killed_after_unmasking_sends_the_same_sum(cluster, zeros):
    """Killed three times in one round: the session is done, the sum is stored, it is being sent."""
    parent = cluster.server("parent").start()
    north, devices = fleet_of(cluster, parent, "north", [f"d{i}" for i in range(4)], kill=STEPS[0])
    wait_until(lambda: parent.online() == 1, "the site attends")
    run = parent.submit(one_round(4, 4), zeros)
    left, stored = list(STEPS), []

    def kept():
        return {p.name: p.read_bytes() for p in (north.state / "upstream").glob(f"{run}.*")}

    def look():
        if left and north.process.poll() is not None:
            north.wait_for_kill()
            stored.append((left.pop(0), kept()))
            north.launch(left[0] if left else "")
        return finished(parent, run)()

    played(devices, look, "the run ends")
    assert [place for place, _ in stored] == list(STEPS)
    check_bits(parent, run, devices)
    unmasked, written, sending = (files for _, files in stored)
    assert unmasked == {}
    assert set(written) == {f"{run}.1.body", f"{run}.1.header"}
    assert written == sending
    update = parent.ledger(lambda ledger: ledger.find_update(run, 1, "north"))
    header = fleet_pb2.UpdateHeader.FromString(written[f"{run}.1.header"])
    assert update.identity == sha256(header.SerializeToString(deterministic=True)).hexdigest()
    assert (update.devices, update.weight) == (4, 8.0)
    counted = wait_until(
        lambda: [r for r in north.rounds(run) if r.state == "committed"], "the site learns it"
    )
    assert counted[0].accepted == 4


@pytest.mark.longest
def test_a_site_whose_sessions_are_abandoned_tells_it_without_names(cluster, zeros):
    """A device deals shares of another secret; the parent hears how many updates were missing."""
    parent = cluster.server("parent").start()
    north, devices = fleet_of(cluster, parent, "north", ["anna", "bert", "carl", "dora"])
    liar, make = devices[3], devices[3].new_member

    def lying():
        member = make()
        member._secrets.self_seed[-1] ^= 1
        return member

    liar.new_member = lying
    wait_until(lambda: parent.online() == 1, "the site attends")
    run = parent.submit(one_round(4, 3), zeros)

    def abandoned():
        return [row for row in parent.rounds(run) if row.state == "abandoned"]

    [row, *_] = played(devices, abandoned, "the round is abandoned")
    [member] = parent.ledger(lambda ledger: ledger.cohort(run, 1))
    assert member.phase == "failed"
    assert "the site's round was abandoned: quorum not reached" in member.reason
    assert not any(device.name in member.reason + row.reason for device in devices)
    [its] = [each for each in north.rounds(run) if each.number == 1]
    assert "dora dealt shares of another secret" in its.reason
    assert parent.ledger(lambda ledger: ledger.find_update(run, 1, "north")) is None


@pytest.mark.longest
def test_a_session_that_is_given_up_before_the_reveal_tells_the_parent(cluster, zeros):
    """All members stop before they sign: nothing is revealed."""
    parent = cluster.server("parent").start()
    north, devices = fleet_of(cluster, parent, "north", ["a0", "a1", "a2"])
    for device in devices:
        device.stops = AGREEMENT
    wait_until(lambda: parent.online() == 1, "the site attends")
    masking = PATIENT | {"phase_s": 5.0}
    run = parent.submit(one_round(3, 3, masking=masking), zeros)

    def told():
        members = parent.ledger(lambda ledger: ledger.cohort(run, 1))
        return [m.reason for m in members if m.phase == "failed"]

    [reason] = played(devices, told, "the parent hears of it")
    assert "the site's round was abandoned: quorum not reached" in reason
    [session] = north.ledger(lambda ledger: ledger.sessions(run, 1))
    assert session.state is SessionState.ABANDONED
    assert not session.revealed


def test_a_round_that_the_parent_aborts_is_given_up_before_the_reveal(cluster, zeros):
    """Its members prove that nobody can unmask it, so they may mask their updates again."""
    parent = cluster.server("parent").start()
    north, devices = fleet_of(cluster, parent, "north", ["a0", "a1", "a2"])
    for device in devices:
        device.stops = BODY
    wait_until(lambda: parent.online() == 1, "the site attends")
    run = parent.submit(
        one_round(3, 3, masking=PATIENT | {"phase_s": 100.0, "upload_s": 100.0}), zeros
    )

    def session():
        found = north.ledger(lambda ledger: ledger.sessions(run, 1))
        return found[0].state if found else None

    def proved():
        if session() is SessionState.MASKING and not aborted:
            aborted.append(parent.control.post(f"runs/{run}/abort"))
        return all(device.proof is not None for device in devices)

    aborted = []
    played(devices, proved, "the members prove it")
    assert session() is SessionState.ABANDONED
    assert parent.rounds(run)[0].state == "abandoned"
    assert parent.ledger(lambda ledger: ledger.find_update(run, 1, "north")) is None


def test_noise_of_sessions_at_sites_is_in_the_sum_and_counts_once_a_round(cluster, zeros):
    """The parent adds none: its model is the noisy integers of the devices over the goal."""
    accounting = pytest.importorskip("dp_accounting")
    parent = cluster.server("parent").start()
    private = {
        "mechanism": "distributed", "clip": 8.0, "noise_multiplier": 1.0, "delta": 1e-5,
    }  # fmt: skip
    _, devices = fleet_of(cluster, parent, "north", ["a0", "a1", "a2"], make=NoisyDevice)
    _, others = fleet_of(cluster, parent, "south", ["b0", "b1", "b2", "b3"], make=NoisyDevice)
    wait_until(lambda: parent.online() == 2, "sites attend")
    masking = {n: v for n, v in PATIENT.items() if n not in ("precision", "metrics")}
    run_spec = one_round(7, 7, masking=masking, privacy=private, weighting="uniform")
    run = parent.submit(run_spec, zeros)
    played([*devices, *others], finished(parent, run), "the run ends")
    [row] = parent.rounds(run)
    assert row.accepted == 7
    model, exponent = parent.params(row.model_out), parse(run_spec).exponent()
    for name, before in ZEROS.items():
        sums = sum(device.sent[name].astype(object) for device in (*devices, *others))
        means = [float(Fraction(int(each), 7 * 2**exponent)) for each in sums]
        wanted = np.array(means).astype(np.float32).reshape(before.shape)
        assert model[name].tobytes() == wanted.tobytes(), name
    assert row.training == {}
    claimed = parent.ledger(lambda ledger: ledger.run(run)).privacy
    assert row.privacy["epsilon"] == claimed["epsilon"]
    assert accounting is not None


# ---- what a site refuses its parent --------------------------------------------------------------


def ordered(run_spec, model, number, *, devices=3):
    """A parent's task of a training round."""
    asked = describe(
        run_spec, run="masked-1", number=number, trained=number - 1, kind=RoundKind.TRAIN, clip=8.0
    )
    task = to_message(replace(asked, model=model))
    task.memory_round = number - 1
    task.site.spec, task.site.devices = json.dumps(run_spec.as_dict()), devices
    return task


def test_a_site_holds_no_more_rounds_than_the_privacy_claim_of_the_run(tmp_path, zeros):
    """Whatever its parent asks; and none for fewer places than a session has members."""
    pytest.importorskip("dp_accounting")
    private = {"mechanism": "distributed", "clip": 8.0, "noise_multiplier": 1.0, "delta": 1e-5}
    masking = {n: v for n, v in PATIENT.items() if n not in ("precision", "metrics")}
    settings = {"masking": masking, "privacy": private, "weighting": "uniform"}
    run_spec = parse(one_round(3, 3, **settings))

    async def scenario():
        federation = await Federation(tmp_path).start()
        devices = [NoisyDevice(federation, f"d{i}", update(i)).start() for i in range(3)]
        try:
            context = federation.server.context.rounds
            collector = Collector(federation.server.runs, context)
            model = FileRef(digest=context.models.add(zeros), size_bytes=zeros.stat().st_size)

            async def collect(number, **changes):
                task = ordered(run_spec, model, number, **changes)
                ends_at = time.monotonic() + 600.0
                await collector.collect(task, context.models.path, "north", ends_at)

            with pytest.raises(NoDevicesError, match=r"places for 2 devices, .* at least 3"):
                await collect(1, devices=2)
            await collect(1)
            assert context.outbox.header("masked-1", 1).site.devices == 3
            with pytest.raises(UsageError, match=r"at most 1 training rounds, .* claim"):
                await collect(2)
            [row] = federation.ledger.list_rounds("masked-1")
            assert (row.number, row.state) == (1, "committed")
        finally:
            for device in devices:
                await device.stop()
            await federation.stop()

    asyncio.run(scenario())
