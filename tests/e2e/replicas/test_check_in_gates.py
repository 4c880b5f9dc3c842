"""Devices that check in at replicas: whichever gate they come to, the driver decides."""

from pathlib import Path

import pytest

from fedloom.server.check_in_pace import CheckInRules
from support.replicas import DEVICES, Replicas, check_all_counted, spec
from support.site_servers import Cluster, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.usefixtures("credentials")]

RULES = CheckInRules(every_s=2.0, hold_s=0.8)
CHECK_IN = DEVICES[2:]


@pytest.fixture
def replicas(tmp_path, database, s3):
    """Two replicas with gates; of five devices three check in."""
    cluster = Cluster(tmp_path)
    url, store = database.create(tmp_path.name), s3.url(tmp_path.name)
    made = Replicas(tmp_path, url, store, 2, gates=True, check_in=RULES)
    configs = cluster.enrol(made.first, DEVICES)
    for name, path in zip(DEVICES, configs, strict=True):
        if name in CHECK_IN:
            Path(path).write_text('attendance = "check-in"\n' + Path(path).read_text())
    cluster.run_devices(made.first, configs)
    wait_until(lambda: made.driver.online() >= 2, "devices attend")
    yield made
    cluster.close()
    made.close()


def came_to(replica):
    """Devices that have checked in there."""
    return {name for name in CHECK_IN if f" {name} checks in" in replica.log()}


def test_devices_that_check_in_at_gates_give_the_bits_of_one_server(replicas, alone, small_model):
    """Four rounds of all five, three of which come and go, over any of the replicas."""
    run = replicas.first.submit(spec(), small_model)
    assert replicas.first.ended(run).model == alone
    check_all_counted(replicas.first, run)
    wait_until(lambda: all(map(came_to, replicas.all)), "some come to each replica")
    wait_until(
        lambda: (replicas.first.control.get("server")["check_ins"] or {}).get("expected") == 3,
        "the driver counts them",
    )
    refused = replicas.first.ledger(lambda ledger: ledger.list_refusals(""))
    assert not [row for row in refused if row.client in CHECK_IN], refused


def test_they_come_to_the_next_driver(replicas, alone, small_model):
    """The driver is killed in the second round: members return, others come when told."""
    run = replicas.first.submit(spec(), small_model)
    wait_until(lambda: len(replicas.first.rounds(run)) >= 2, "the second round is open")
    replicas.first.kill()
    assert replicas.driver.ended(run).model == alone
    check_all_counted(replicas.driver, run)
