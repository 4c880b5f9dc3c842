"""Sites that sum for their devices: the parent's model has the bits of one server of all devices.

All servers and devices are processes of their own, with certificates.
"""

from hashlib import sha256

import numpy as np
import pytest

from fedloom.protocol.tensors.container import write_file
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


@pytest.fixture(scope="module")
def flat(model, tmp_path_factory):
    """The rounds and the last model of a server with all devices, and the run's metrics."""
    cluster = Cluster(tmp_path_factory.mktemp("flat"))
    try:
        server = cluster.server("flat").start()
        names = [f"{site}.{name}" for site, names in SITES.items() for name in names]
        cluster.start_devices(server, names)
        run = server.submit(spec(sites=False), model)
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
