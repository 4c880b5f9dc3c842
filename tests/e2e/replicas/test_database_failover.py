"""The database's primary is lost, and its synchronous standby takes over."""

import signal
from contextlib import ExitStack, closing

import pytest

from support.postgresql import PostgreSQL
from support.replicas import DEVICES, Replicas, acknowledged, check_all_counted, has_rounds, spec
from support.site_servers import Cluster, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.usefixtures("credentials")]


def both(primary, standby, name):
    """The setting `database` for whichever of two servers is the primary."""
    hosts = "&".join(f"host=127.0.0.1:{each.port}" for each in (primary, standby))
    return f"postgresql+psycopg://postgres@/{name}?{hosts}&target_session_attrs=read-write"


def test_rounds_continue_on_the_standby(tmp_path, s3, alone, small_model):
    """Killed in the middle of a round: nothing acknowledged is lost, and no run is paused."""
    with ExitStack() as stack:
        primary = stack.enter_context(closing(PostgreSQL()))
        standby = stack.enter_context(closing(primary.standby()))
        primary.create("fl")
        database, store = both(primary, standby, "fl"), s3.url(tmp_path.name)
        replicas = Replicas(tmp_path, database, store, 3, gates=True)
        stack.enter_context(closing(replicas))
        cluster = stack.enter_context(closing(Cluster(tmp_path)))
        driver = replicas.driver
        cluster.run_devices(driver, cluster.enrol(driver, DEVICES))
        wait_until(lambda: driver.online() == len(DEVICES), "devices attend")
        run = driver.submit(spec(), small_model)
        wait_until(lambda: has_rounds(driver, run, 2), "a second round")
        primary.stop(signal.SIGKILL)
        standby.promote()
        assert replicas.driver.ended(run).model == alone
        check_all_counted(replicas.driver, run)
        numbers = {each.number for each in replicas.driver.rounds(run)}
        assert acknowledged(tmp_path) == {(number, name) for number in numbers for name in DEVICES}
        assert [each.process.poll() for each in replicas.all] == [None] * len(replicas.all)
