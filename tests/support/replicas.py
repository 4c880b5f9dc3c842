"""Servers behind haproxy, over one PostgreSQL and one object store."""

import re
import shutil
import signal
import urllib.error
import urllib.request
from collections import Counter

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cluster import haproxy
from fedloom.protocol.tensors.container import read_params
from fedloom.server.ledger.audit_trail import audit
from fedloom.server.ledger.tables import updates
from fedloom.server.planning.spec import parse
from support import proxy
from support.contexts import rows_of
from support.crash import replayed_model
from support.patience import PATIENCE_S
from support.ports import steady_port
from support.site_servers import RUN_SEED, Cluster, ServerProcess, wait_until
from support.storage import storage_of

DEVICES = ["ward.one", "ward.two", "ward.three", "ward.four", "ward.five"]


def spec(**changes):
    """A run that counts each device once a round."""
    goal = changes.pop("goal", len(DEVICES))
    return {
        "name": "pair",
        "rounds": 4,
        "seed": RUN_SEED,
        "strategy": {"name": "fedadam"},
        "cohort": {"goal": goal, "quorum": goal, "deadline_s": 300.0},
        "train": {"epochs": 1, "batch_size": 8, "learning_rate": 0.1},
        **changes,
    }


def alone(folder, model, settings, devices=DEVICES):
    """Digest of the last model of a run on a server alone."""
    cluster = Cluster(folder)
    try:
        server = cluster.server("alone").start()
        cluster.start_devices(server, devices)
        return server.ended(server.submit(settings, model)).model
    finally:
        cluster.close()


class Replica(ServerProcess):
    """One server of several; the others have the first one's settings and master key alone."""

    def __init__(self, directory, name, port, **settings):
        behind = proxy.settings(port)
        super().__init__(directory, name, replicated=True, **behind, **settings)
        self.enrolment = self.settings.public.enrolment

    @property
    def drives(self):
        return self._answers("ready")

    def serves(self):
        """Whether it serves devices, as the driver or as a gate."""
        return self._answers("fleet")

    def _answers(self, path):
        try:
            with urllib.request.urlopen(f"http://{self.settings.health}/{path}", timeout=1):
                return True
        except (urllib.error.URLError, OSError):
            return False

    def kill(self, how=signal.SIGKILL):
        self.process.send_signal(how)
        if how == signal.SIGKILL:
            self.process.wait(PATIENCE_S)

    def continued(self):
        """Continue a stopped server; its exit status."""
        self.process.send_signal(signal.SIGCONT)
        return self.process.wait(PATIENCE_S)


class Replicas:
    """Replicas whose devices connect through haproxy; ended by `close`.

    Args:
        directory: for the states, logs and settings of clients.
        database: URL.
        store: URL.
        count: of replicas.
        kills: crash points at which replicas are killed, by their number.
        databases: URLs of replicas that reach the database otherwise, by their number.
        constants: of each, see `ServerProcess`.
        sources: as of `ServerProcess`.
        environments: of the first ones.
        settings: of each replica.

    Attributes:
        all: the replicas; the first one drives at first.
        port: of haproxy.
    """

    def __init__(
        self,
        directory,
        database,
        store,
        count=2,
        *,
        kills=None,
        databases=None,
        constants=None,
        sources="",
        environments=(),
        **settings,
    ):
        if haproxy.program() is None:
            pytest.skip("haproxy is not installed")
        kills, port = kills or {}, steady_port()
        self.port = port
        urls = dict.fromkeys(range(count), database) | (databases or {})
        self.all = [
            Replica(directory, f"replica{n}", port, database=url, store=store, **settings)
            for n, url in urls.items()
        ]
        for each in self.all:
            each.constants = constants or {}
            each.sources = sources
        for each, variables in zip(self.all, environments, strict=False):
            each.environment = variables
        self.first, *others = self.all
        self.first.start(kills.get(0, ""))
        for number, each in enumerate(others, 1):
            shutil.rmtree(each.state / "pki")
            shutil.copy(self.first.state / "master.key", each.state)
            each.launch(kills.get(number, ""))
        for each in others if settings.get("gates") else ():
            wait_until(each.serves, f"a gate serves: {each.log()}")
        self.door = proxy.Proxy(directory, port, *(each.settings for each in self.all))
        self.door.wait_for_servers()

    @property
    def second(self):
        return self.all[1]

    @property
    def driver(self):
        """The replica that drives."""
        return wait_until(
            lambda: next((each for each in self.all if each.drives), None),
            f"a replica drives: {''.join(each.log() for each in self.all)}",
        )

    def gate_of(self, client):
        """The replica where a client's stream is; the latest, if it has moved."""
        came = [
            (line[:23], each)
            for each in self.all
            for line in each.log().splitlines()
            if f" {client} attends" in line
        ]
        return max(came, key=lambda found: found[0])[1]

    def close(self):
        for each in self.all:
            if each.process.poll() is None:
                each.process.send_signal(signal.SIGCONT)
            each.stop()
        self.door.close()


def buffers(goal=2, **changes):
    """A run with buffers: while one closes, most devices are at work on an older model."""
    cohort = {
        "mode": "buffered", "goal": goal, "quorum": goal, "concurrency": len(DEVICES),
        "deadline_s": 900.0, "patience_s": 900.0,
    }  # fmt: skip
    return spec(cohort=cohort, evaluate=False, **changes)


def check_buffers(replica, run, initial):
    """Each accepted update counts in one buffer, and the model is what the rows add up to.

    Args:
        replica: that drives.
        run: that has ended.
        initial: file of its first model.

    Returns:
        How many updates counted by their staleness.
    """
    listed = replica.rounds(run)
    assert [each.state for each in listed] == ["committed"] * len(listed)
    counted = [
        replica.ledger(lambda ledger, number=each.number: ledger.accepted(run, number))
        for each in listed
    ]
    settings = replica.ledger(lambda ledger: ledger.run(run).spec)
    goal = parse(settings).round_config().goal
    for number, updates_ in enumerate(counted, 1):
        clients = [each.client for each in updates_]
        assert goal <= len(clients) == len(set(clients)), f"buffer {number}: {clients}"
    stored = {(row["round"], row["client"]) for row in rows(replica, updates) if row["run"] == run}
    taken = [(each.round, each.client) for updates_ in counted for each in updates_]
    assert sorted(taken) == sorted(stored), "each is in one buffer"
    tasks = [[(each.client, each.round, each.staleness) for each in found] for found in counted]
    wanted = replayed_model(read_params(initial), settings, tasks, seed_name)
    storage = storage_of(replica.state, replica.settings)
    try:
        got = storage.models.params(replica.ledger(lambda ledger: ledger.run(run).model))
        assert {name: each.tobytes() for name, each in got.items()} == {
            name: each.tobytes() for name, each in wanted.items()
        }
    finally:
        storage.close()
    return Counter(each.staleness for found in counted for each in found)


def seed_name(client):
    """The name from which a device of `site_devices` draws."""
    return client.replace(".", "/")


def metrics(replica):
    """What Prometheus reads where a balancer asks: value by name."""
    with urllib.request.urlopen(f"http://{replica.settings.health}/metrics", timeout=10) as reply:
        families = text_string_to_metric_families(reply.read().decode())
        return {each.name: each.value for family in families for each in family.samples}


def rows(replica, table):
    return replica.ledger(lambda ledger: rows_of(ledger, table.select()))


def actions(replica):
    return [row["action"] for row in rows(replica, audit)]


def has_rounds(replica, run, count):
    return len(replica.rounds(run)) >= count


def acknowledged(folder):
    """The updates whose acknowledgement a device saw: round and client."""
    log = (folder / "devices-of-replica0.log").read_text()
    seen = re.findall(r"(\S+): update of round (\d+) of \S+ accepted", log)
    return {(int(number), client) for client, number in seen}


def check_all_counted(replica, run):
    """Each round is committed once and counts every device."""
    listed = replica.rounds(run)
    assert [each.state for each in listed] == ["committed"] * len(listed)
    accepted = {(row["round"], row["client"]) for row in rows(replica, updates)}
    assert accepted == {(each.number, name) for each in listed for name in DEVICES}
