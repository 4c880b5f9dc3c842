"""Replicas with gates over an object store that fails, is slow, cuts, and damages what it has."""

import time

import pytest

from fedloom.server.ledger.tables import updates
from support.object_store import FaultProxy
from support.replicas import (
    DEVICES,
    Replicas,
    acknowledged,
    check_all_counted,
    has_rounds,
    rows,
    spec,
)
from support.site_servers import Cluster, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.usefixtures("credentials")]


@pytest.fixture
def faulty(s3):
    made = FaultProxy(s3.endpoint)
    yield made
    made.close()


@pytest.fixture
def gated(tmp_path, database, s3, faulty):
    """Three replicas whose store is behind the proxy of faults, with connected devices."""
    store = s3.url(tmp_path.name, faulty.endpoint)
    cluster = Cluster(tmp_path)
    replicas = Replicas(tmp_path, database.create(tmp_path.name), store, 3, gates=True)
    cluster.run_devices(replicas.first, cluster.enrol(replicas.first, DEVICES))
    wait_until(lambda: replicas.driver.online() == len(DEVICES), "devices attend")
    yield replicas
    cluster.close()
    replicas.close()


def lost(folder, replica):
    """Acknowledgements that devices have and the ledger does not."""
    known = {(row["round"], row["client"]) for row in rows(replica, updates)}
    return acknowledged(folder) - known


def test_faults_of_the_store_lose_nothing(gated, faulty, tmp_path, alone, small_model):
    """One request in ten fails, some are slow, some are cut; then nothing works for a while."""
    faulty.error_rate, faulty.slow_rate, faulty.cut_rate = 0.1, 0.05, 0.05
    run = gated.first.submit(spec(), small_model)
    wait_until(lambda: has_rounds(gated.first, run, 2), "a second round")
    faulty.is_down = True
    time.sleep(8.0)
    assert not lost(tmp_path, gated.first)
    faulty.is_down = False
    assert gated.first.ended(run).model == alone
    check_all_counted(gated.first, run)
    assert not lost(tmp_path, gated.first)
    assert {each.state for each in gated.first.rounds(run)} == {"committed"}
    assert sum(faulty.made.values()) > 10


def test_damaged_sums_of_gates_are_folded_again_from_their_updates(
    gated, faulty, tmp_path, alone, small_model
):
    """Every sum that the driver reads is damaged; the bits are the same."""
    faulty.corrupt = "sums/"
    run = gated.first.submit(spec(), small_model)
    assert gated.first.ended(run).model == alone
    check_all_counted(gated.first, run)
    assert not lost(tmp_path, gated.first)
    assert any(row["sealed_in"] for row in rows(gated.first, updates))
    assert "a gate's sum is folded again from its updates" in gated.driver.log()
