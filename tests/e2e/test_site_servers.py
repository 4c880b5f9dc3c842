"""Sites that sum for their devices: the parent's model has the bits of one server of all devices.

All servers and devices are processes of their own, with certificates.
"""

from hashlib import sha256

import numpy as np
import pytest

from fedloom.protocol.tensors.container import write_file
from fedloom.protocol.updates.site_members import devices_in
from fedloom.protocol.v1 import fleet_pb2
from support.site_servers import RUN_SEED, Cluster, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.long]

SITES = {"north": ["one", "two"], "south": ["three", "four", "five"]}
GOAL = sum(map(len, SITES.values()))


def spec(**changes):
    return {
        "name": "sums",
        "rounds": 3,
        "seed": RUN_SEED,
        "sites": True,
        "strategy": {"name": "fedadam"},
        "cohort": {"goal": GOAL, "quorum": GOAL, "deadline_s": 300.0},
        "train": {"epochs": 1, "batch_size": 8, "learning_rate": 0.1},
        **changes,
    }


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A file of an initial model, larger than a block of a sum."""
    rng, path = np.random.default_rng(3), tmp_path_factory.mktemp("model") / "model.safetensors"
    arrays = {"w": rng.normal(0, 1, (70_003,)), "b": rng.normal(0, 1, (3, 5))}
    write_file(path, {name: array.astype(np.float32) for name, array in arrays.items()})
    return path


@pytest.fixture
def cluster(tmp_path):
    made = Cluster(tmp_path)
    yield made
    made.close()


def of_one_server(directory, sites, model, **changes):
    """The rounds, the last model, and the bytes of the first round of a server of all devices."""
    directory.mkdir()
    cluster = Cluster(directory)
    try:
        server = cluster.server("flat").start()
        names = [f"{path}/{name}".replace("/", ".") for path, own in sites.items() for name in own]
        cluster.start_devices(server, names)
        run = server.submit(spec(sites=False, **changes), model)
        row = server.ended(run)
        size_bytes = sum(update_sizes(server, run, 1, names))
        return server.rounds(run), server.model(row.model), size_bytes
    finally:
        cluster.close()


def update_sizes(server, run, number, clients):
    """Bytes of the updates that clients sent in a round."""

    def look(ledger):
        return [ledger.find_update(run, number, client).size_bytes for client in clients]

    return server.ledger(look)


@pytest.fixture(scope="module")
def flat(model, tmp_path_factory):
    """The rounds and the last model of a server with all devices, and the run's metrics."""
    return of_one_server(tmp_path_factory.mktemp("flat") / "flat", SITES, model)[:2]


def with_sites(cluster, kill=""):
    """A running parent with two sites and their devices; the first site dies where `kill` says."""
    parent = cluster.server("parent").start()
    for site, names in SITES.items():
        made = cluster.site(parent, site, len(names), kill=kill if site == "north" else "")
        cluster.start_devices(made, names, site)
    wait_until(lambda: parent.online() == len(SITES), "sites attend")
    return parent


def check_same(cluster, parent, run, flat):
    """Model, rounds and metrics are those without sites; the sites know what counted."""
    flat_rounds, flat_model = flat
    row = parent.ended(run)
    rounds = parent.rounds(run)
    assert parent.model(row.model) == flat_model
    assert [r.accepted for r in rounds] == [GOAL] * 4
    assert [r.model_out for r in rounds] == [r.model_out for r in flat_rounds]
    for ours, theirs in zip(rounds, flat_rounds, strict=True):
        for kind in ("training", "evaluation"):
            mine, its = getattr(ours, kind), getattr(theirs, kind)
            assert mine == {n: v for n, v in its.items() if n in ("num_examples", "values")}
    for name, devices in SITES.items():
        site = cluster.servers[name]
        assert site.ended(run).committed == row.committed == 3
        found = [(r.state, r.kind, r.accepted) for r in site.rounds(run)]
        assert found == [("committed", r.kind, len(devices)) for r in rounds]


def test_the_model_has_the_bits_of_a_server_of_all_devices(cluster, model, flat):
    """Three rounds of training and one of evaluation."""
    parent = with_sites(cluster)
    run = parent.submit(spec(), model)
    check_same(cluster, parent, run, flat)
    updates = parent.ledger(
        lambda ledger: [ledger.find_update(run, number, "north") for number in (1, 2, 3)]
    )
    assert [update.devices for update in updates] == [2, 2, 2]
    assert all(update.size_bytes < 8.2 * 70_018 for update in updates)


STEPS = (
    "accept.after:1", "round.closing:1", "site.sum.stored:1", "commit.ledger:1",
    "site.sum.sending:1", "client.upload.sent:1",
)  # fmt: skip
"""Of a site's round, in order."""


def test_a_site_that_is_killed_after_each_step_sends_the_same_sum(cluster, model, flat):
    """Killed six times in one round, at the step that follows; the bits are the same."""
    parent = with_sites(cluster, kill=STEPS[0])
    run = parent.submit(spec(), model)
    site, stored = cluster.servers["north"], []
    for place in (*STEPS[1:], ""):
        site.wait_for_kill()
        stored.append({p.name: p.read_bytes() for p in (site.state / "upstream").glob("*")})
        site.launch(place)
    check_same(cluster, parent, run, flat)
    assert stored[1] == {}  # the sum is made once the round has closed
    assert set(stored[3]) == {f"{run}.1.body", f"{run}.1.header"}
    assert stored[3] == stored[4] == stored[5]
    update = parent.ledger(lambda ledger: ledger.find_update(run, 1, "north"))
    header = fleet_pb2.UpdateHeader.FromString(stored[3][f"{run}.1.header"])
    assert update.identity == sha256(header.SerializeToString(deterministic=True)).hexdigest()


def test_a_tree_of_depth_three_has_the_bits_of_a_server_of_all_devices(cluster, model):
    """A region adds the sums of its two wards; the other site of the top has devices."""
    wards = {"first": ["one", "two"], "second": ["three"]}
    devices = {f"region/{ward}": names for ward, names in wards.items()}
    devices["clinic"] = ["four", "five"]
    flat_rounds, flat_model, _ = of_one_server(cluster.directory / "flat", devices, model)
    top = cluster.server("top").start()
    region = cluster.site(top, "region", 3, names=True)
    for ward, names in wards.items():
        made = cluster.site(region, ward, len(names), names=ward == "first")
        cluster.start_devices(made, names, f"region/{ward}")
    cluster.start_devices(cluster.site(top, "clinic", 2), ["four", "five"], "clinic")
    wait_until(lambda: top.online() == region.online() == 2, "sites attend")
    run = top.submit(spec(), model)
    row = top.ended(run)
    assert top.model(row.model) == flat_model
    for ours, theirs in zip(top.rounds(run), flat_rounds, strict=True):
        assert ours.model_out == theirs.model_out
        assert ours.accepted == theirs.accepted == GOAL
        assert ours.training.get("values") == theirs.training.get("values")
        assert ours.evaluation.get("values") == theirs.evaluation.get("values")
    for name, accepted in (("region", 3), ("first", 2), ("second", 1), ("clinic", 2)):
        site = cluster.servers[name]
        assert site.ended(run).committed == 3
        assert [(r.state, r.accepted) for r in site.rounds(run)] == [("committed", accepted)] * 4
    members = {m.client: m.members for m in top.ledger(lambda ledger: ledger.members(run, 1))}
    assert members["clinic"] is None
    assert list(devices_in(members["region"])) == [
        ("first/one", 1),
        ("first/two", 1),
        ("second", 1),
    ]


@pytest.mark.longest
def test_four_sites_of_25_devices_send_a_twelfth_of_the_bytes_of_100(cluster, model):
    """The same bits, in a twentieth of the bytes of their float32 updates."""
    sites = {f"site{n}": [f"device{m}" for m in range(25)] for n in range(4)}
    rounds = {"rounds": 2, "cohort": {"goal": 100, "quorum": 100, "deadline_s": 300.0}}
    flat_rounds, _, flat_bytes = of_one_server(cluster.directory / "flat", sites, model, **rounds)
    parent = cluster.server("parent").start()
    for site, names in sites.items():
        cluster.start_devices(cluster.site(parent, site, 25), names, site)
    wait_until(lambda: parent.online() == 4, "sites attend")
    run = parent.submit(spec(**rounds), model)
    parent.ended(run)
    assert [r.model_out for r in parent.rounds(run)] == [r.model_out for r in flat_rounds]
    assert [r.accepted for r in parent.rounds(run)] == [100] * 3
    assert sum(update_sizes(parent, run, 1, sites)) <= flat_bytes / 12


@pytest.mark.longest
def test_a_site_that_was_away_when_the_run_ended_learns_it(cluster, model):
    """Its last sum counts there as well, and the run ends, once it is connected again."""
    parent = with_sites(cluster, kill="client.upload.accepted:3")
    run = parent.submit(spec(evaluate=False), model)
    site = cluster.servers["north"]
    site.wait_for_kill()
    parent.ended(run)
    assert [r.state for r in site.rounds(run)] == ["committed", "committed", "sent"]
    site.launch("")
    assert site.ended(run).committed == 3
    assert [r.state for r in site.rounds(run)] == ["committed"] * 3


@pytest.mark.longest
def test_sites_follow_a_rollback_of_a_run_that_had_ended(cluster, model):
    """Rounds that the parent undoes are undone at its sites, and the run goes on there."""
    parent = with_sites(cluster)
    run = parent.submit(spec(evaluate=False), model)
    parent.ended(run)
    site = cluster.servers["north"]
    site.ended(run)
    parent.control.post(f"runs/{run}/rollback", body={"round": 1})
    parent.control.post(f"runs/{run}/resume")
    for server in (parent, site):
        assert server.ended(run).committed == 3
        found = [r.state if r.undone_at is None else "undone" for r in server.rounds(run)]
        assert found == ["committed", "undone", "undone", "committed", "committed"]


def test_the_deadline_of_a_site_counts_from_the_offer(cluster, model):
    """A download that takes longer than the margin does not move it past the parent's."""
    parent = cluster.server("parent").start()
    site = cluster.server("north")
    site.upstream = parent.enrol("north", devices=2)
    slow = site.upstream.read_text().replace("[budgets]", "[budgets]\ndownload_mbit_s = 0.5")
    site.upstream.write_text(slow)
    cluster.start_devices(site.start(), SITES["north"], "north")
    wait_until(lambda: parent.online() == 1, "the site attends")
    few = {"goal": 2, "quorum": 2, "deadline_s": 20.0}
    run = parent.submit(spec(rounds=1, evaluate=False, cohort=few), model)
    wait_until(lambda: site.ledger(lambda ledger: ledger.list_rounds(run)), "the round is held")
    [its], [ours] = site.rounds(run), parent.rounds(run)
    assert its.deadline_at < ours.deadline_at
