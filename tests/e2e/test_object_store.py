"""A server whose models and updates lie in an object store: its machine may be lost at any step.

The server, the devices and the store are processes; the machine that is lost leaves its settings
and keys alone. The ledger is elsewhere, as on a database server.
"""

import shutil
import time

import pytest

from fedloom.server.ledger.tables import refusals, spool_objects, updates
from fedloom.server.storage.objects.interface import Objects
from fedloom.server.storage.objects.opening import open_objects
from fedloom.server.storage.objects.parts import PART_BYTES, get_file, part_names
from fedloom.server.store_url import StoreUrl
from support.contexts import rows_of
from support.marks import sampled
from support.object_store import CREDENTIALS, FaultProxy
from support.site_servers import RUN_SEED, Cluster, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.usefixtures("credentials")]

DEVICES = ["ward.one", "ward.two", "ward.three", "ward.four", "ward.five"]
KEYS = ("server.toml", "pki", "signing")
"""What a new machine gets of the lost one."""


def spec(**changes):
    goal = changes.pop("goal", len(DEVICES))
    return {
        "name": "objects",
        "rounds": 3,
        "seed": RUN_SEED,
        "strategy": {"name": "fedadam"},
        "cohort": {"goal": goal, "quorum": goal, "deadline_s": 300.0},
        "train": {"epochs": 1, "batch_size": 8, "learning_rate": 0.1},
        **changes,
    }


@pytest.fixture
def proxy(s3):
    made = FaultProxy(s3.endpoint)
    yield made
    made.close()


class Stored:
    """A server with an object store, and what is in it."""

    def __init__(self, cluster, s3, endpoint=""):
        prefix = cluster.directory.name
        self.server = cluster.server(
            "server",
            store=s3.url(prefix, endpoint),
            database=f"sqlite:///{cluster.directory / 'ledger.sqlite'}",
        )
        self._s3, self._prefix = s3, prefix

    @property
    def objects(self) -> Objects:
        """The store, without the faults of a proxy."""
        return open_objects(StoreUrl.parse(self._s3.url(self._prefix)))

    def names(self):
        return {each.name for each in self.objects.list("")}

    def named(self):
        """Every object that the ledger names."""

        def ask(ledger):
            names = {ledger.store_claim()}
            for digest in ledger.find_stored_models(""):
                found = ledger.model_object(digest)
                names.update(part_names(found.object, found.size_bytes))
            for run, number in ledger.rounds_with_bodies():
                names.update(*(each.names for each in ledger.bodies_of_round(run, number)))
            return names

        return self.server.ledger(ask)

    def model(self, digest):
        """The bytes of a model in the store."""
        found = self.server.ledger(lambda ledger: ledger.model_object(digest))
        return b"".join(get_file(self.objects, found.object, found.size_bytes))

    def lose_machine(self):
        """Delete what was on the disk of the server, but what its operator has copies of."""
        for path in self.server.state.iterdir():
            if path.is_dir() and path.name not in KEYS:
                shutil.rmtree(path)
            elif path.name not in KEYS:
                path.unlink()

    def accepted(self):
        """The rows of accepted updates by round and client, but what is counted later."""
        rows = self.server.ledger(lambda ledger: rows_of(ledger, updates.select()))
        return {
            (row["round"], row["client"]): (row["identity"], row["accepted_at"]) for row in rows
        }


@pytest.fixture(scope="module")
def in_files(large_model, tmp_path_factory):
    """The last model of a server whose models are files."""
    cluster = Cluster(tmp_path_factory.mktemp("files"))
    try:
        server = cluster.server("files").start()
        cluster.start_devices(server, DEVICES)
        return server.model(server.ended(server.submit(spec(), large_model)).model)
    finally:
        cluster.close()


def check_nothing_is_lost(server, run, accepted):
    """Three rounds train, a fourth evaluates; each counts every device, and none is abandoned."""
    assert [each.state for each in server.rounds(run)] == ["committed"] * 4
    assert sorted(accepted) == sorted((n, name) for n in (1, 2, 3, 4) for name in DEVICES)


def test_the_model_has_the_bytes_of_a_server_with_files(cluster, s3, large_model, in_files):
    """And the store has what the ledger names, and nothing else, when the run is over."""
    stored = Stored(cluster, s3)
    server = stored.server.start()
    cluster.start_devices(server, DEVICES)
    row = server.ended(server.submit(spec(), large_model))
    assert stored.model(row.model) == in_files
    assert server.model(row.model) == in_files  # the copy
    wait_until(lambda: stored.names() == stored.named(), "objects of ended rounds are deleted")
    assert not any(name.startswith("updates/") for name in stored.names())
    assert len(stored.server.ledger(lambda ledger: ledger.find_stored_models(""))) >= 4
    assert CREDENTIALS["AWS_SECRET_ACCESS_KEY"] not in server.log()


@pytest.mark.parametrize(
    "place",
    sampled(["store.part:5", "upload.synced:4", "accept.after:4", "fold.after:3", "round.closing:2",
     "store.model:3", "commit.stored:2", "commit.ledger:2"], 5),
)  # fmt: skip
def test_a_lost_machine_loses_nothing(cluster, s3, large_model, in_files, place):
    """Its server is killed, another machine continues: the same rows, and the same bytes."""
    stored = Stored(cluster, s3)
    server = stored.server.start()
    # Before it may die, as devices enrol at it.
    configs = cluster.enrol(server, DEVICES)
    digest = server.upload(large_model)
    server.stop()
    server.start(place)
    cluster.run_devices(server, configs)
    run = server.control.post("runs", body={"spec": spec(), "model": digest})["id"]
    server.wait_for_kill()
    before = stored.accepted()
    stored.lose_machine()
    server.start()
    row = server.ended(run)
    assert stored.model(row.model) == in_files
    after = stored.accepted()
    assert before.items() <= after.items()
    check_nothing_is_lost(server, run, after)


def test_an_upload_is_resumed_after_its_last_part_by_another_machine(
    cluster, s3, proxy, large_model
):
    """The first part is put once: the device sends the rest alone."""
    stored = Stored(cluster, s3, proxy.endpoint)
    server = stored.server.start()
    configs = cluster.enrol(server, DEVICES[:1])
    digest = server.upload(large_model)
    server.stop()
    server.start("store.part:2")
    cluster.run_devices(server, configs)
    body = {"spec": spec(goal=1, rounds=1), "model": digest}
    run = server.control.post("runs", body=body)["id"]
    server.wait_for_kill()
    [row] = server.ledger(lambda ledger: rows_of(ledger, spool_objects.select()))
    assert len(row["parts"]) == 1
    stored.lose_machine()
    server.start()
    server.ended(run)
    parts = [name.partition(row["object"])[2] for name in proxy.puts if "/updates/" in name]
    assert sorted(part[:3] for part in parts) == [".0-", ".1-", ".1-"]
    assert f"continues after {PART_BYTES} bytes" in server.log()


def test_faults_of_the_store_lose_nothing(cluster, s3, proxy, large_model, in_files):
    """One request in ten fails, some are slow, some are cut; then nothing works for a while."""
    proxy.error_rate, proxy.slow_rate, proxy.cut_rate = 0.1, 0.05, 0.05
    stored = Stored(cluster, s3, proxy.endpoint)
    server = stored.server.start()
    cluster.start_devices(server, DEVICES)
    run = server.submit(spec(), large_model)
    for number in (1, 2):
        wait_until(lambda n=number: _accepted_in(stored, n), f"an update of round {number}")
        proxy.is_down = True
        time.sleep(15.0)
        proxy.is_down = False
    row = server.ended(run)
    assert stored.model(row.model) == in_files
    check_nothing_is_lost(server, run, stored.accepted())
    assert "next try in" in server.log()
    assert "abandoned" not in server.log()
    refused = server.ledger(lambda ledger: rows_of(ledger, refusals.select()))
    assert {each["code"] for each in refused} == {"out_of_space"}  # which devices repeat
    assert sum(proxy.made.values()) > 10


def _accepted_in(stored, number):
    return any(key[0] == number for key in stored.accepted())


def test_a_corrupted_body_is_never_folded(cluster, s3, proxy, large_model, in_files):
    """The round waits until its object is as it was written."""
    stored = Stored(cluster, s3, proxy.endpoint)
    server = stored.server.start()
    configs = cluster.enrol(server, DEVICES)
    digest = server.upload(large_model)
    server.stop()
    server.start("accept.after:3")
    cluster.run_devices(server, configs)
    run = server.control.post("runs", body={"spec": spec(), "model": digest})["id"]
    server.wait_for_kill()
    stored.lose_machine()
    proxy.corrupt = "updates/"
    server.start()
    wait_until(lambda: "with the CRC-32C" in server.log(), "the damage is noticed")
    wait_until(lambda: "waits for its storage" in server.log(), "the round waits")
    assert server.rounds(run)[0].state in ("reporting", "closing")
    proxy.corrupt = None
    assert stored.model(server.ended(run).model) == in_files


def test_a_server_without_its_store_says_so(cluster, s3, proxy):
    """At once, with the step that fails; and another ledger's store is refused."""
    stored = Stored(cluster, s3, proxy.endpoint)
    proxy.is_down = True
    server = stored.server
    server.launch("")
    assert server.process.wait(60) == 5
    assert "fails at PUT" in server.log()
    proxy.is_down = False
    server.start().stop()
    other = cluster.server("other", store=s3.url(cluster.directory.name))
    other.launch("")
    assert other.process.wait(60) == 2
    assert "Expected a store that no ledger uses" in other.log()
    settings = (server.state / "server.toml").read_text()
    (server.state / "server.toml").write_text(settings.replace('store = "s3:', 'store = "" #'))
    server.launch("")
    assert server.process.wait(60) == 2
    assert "Expected the object store of this ledger" in server.log()
