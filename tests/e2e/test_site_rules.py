"""Runs through sites whose devices get, keep or send more than a model and its changes.

The oracle is a server of all devices, which train on the same examples with the same seeds. All
servers and devices are processes of their own, with certificates.
"""

import json
from hashlib import sha256

import numpy as np
import pytest

from fedloom.protocol.tensors.container import write_file
from fedloom.protocol.updates.site_members import member
from support.site_servers import RUN_SEED, Cluster, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.long]

SITES = {"north": ["one", "two"], "south/ward": ["three", "four"], "south/lab": ["mute"]}
GOAL = sum(map(len, SITES.values()))
ROUNDS = 2

RULES = {
    "qfedavg": {"strategy": {"name": "qfedavg", "q": 0.5}, "weighting": "uniform"},
    "ifca": {"strategy": {"name": "ifca", "clusters": 2}},
    "low_rank": {"compression": {"up": {"name": "low_rank", "rank": 1}}},
    "personal": {"personal": {"keep": ["head"]}},
    "parts": {"config": {"parts": True}},
    "metrics": {"metrics": {"quantiles": [0, 1], "edges": {"loss": [0.2, 0.4, 0.8, 1.6]}}},
    "local": {
        "privacy": {
            "mechanism": "local",
            "clip": 1.0,
            "noise_multiplier": 0.5,
            "delta": 1e-5,
            "noise": "seed",
        },
        "evaluate": False,
        "weighting": "uniform",
    },
}
DOWN = {"compression": {"down": {"name": "int8"}, "up": {"name": "fp16"}}}
SCAFFOLD = {
    "strategy": {"name": "scaffold", "clients": 9},
    "weighting": "uniform",
    "compression": {"up": {"name": "int8"}},
}


def spec(rule, *, sites):
    return {
        "name": "rules",
        "rounds": ROUNDS,
        "seed": RUN_SEED,
        "max_abs": 100.0,
        "sites": sites,
        "cohort": {"goal": GOAL, "quorum": GOAL, "deadline_s": 300.0},
        "train": {"epochs": 2, "batch_size": 8, "learning_rate": 0.05},
        **rule,
    }


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    rng, path = np.random.default_rng(3), tmp_path_factory.mktemp("model") / "model.safetensors"
    shapes = {"body": (12, 8), "bias": (8,), "head": (8, 2), "fixed": (1000,)}
    arrays = {name: rng.normal(0, 0.3, shape) for name, shape in shapes.items()}
    write_file(path, {name: array.astype(np.float32) for name, array in arrays.items()})
    return path


class Tree(Cluster):
    """Servers of a tree, or one of all devices; devices are not started.

    The top has the site north, and the region south of two sites.

    Args:
        directory: for all of their files.
        sites: whether there are any.
        kill: where the first site dies.
    """

    def __init__(self, directory, *, sites, kill=""):
        super().__init__(directory, "site_learners.py")
        self.sites, self.top = sites, self.server("top").start()
        self.places = {}  # name of a site: its server, and the names of its devices there
        south = self.site(self.top, "south", GOAL - len(SITES["north"])) if sites else None
        for site, names in SITES.items():
            above, _, own = site.rpartition("/")
            if sites:
                given = {"kill": kill, "digest_devices": True} if site == "north" else {}
                made = self.site(south if above else self.top, own, len(names), **given)
                self.places[site] = made, names
            else:
                prefix = site.replace("/", ".")
                self.places[site] = self.top, [f"{prefix}.{name}" for name in names]

    def train(self, site, configs, stuck=0):
        """Start devices of a site."""
        return self.run_devices(
            self.places[site][0], configs, site if self.sites else "-", stuck=stuck
        )

    def attend(self):
        """Wait until all devices attend."""
        for server, names in self.places.values():
            wanted = len(names) if self.sites else GOAL
            wait_until(lambda s=server, n=wanted: s.online() >= n, "devices attend")
        if self.sites:
            sites = self.top, self.servers["south"]
            wait_until(lambda: all(server.online() == 2 for server in sites), "sites attend")

    def bytes_down(self, run, number):
        """What each device has downloaded in a round, by SITE.NAME."""
        found = {}
        for site, (server, _) in self.places.items():
            prefix = f"{site.replace('/', '.')}." if self.sites else ""

            def told(server=server):
                members = server.ledger(lambda ledger: ledger.cohort(run, number))
                return members if all(m.bytes_down for m in members) else None

            members = wait_until(told, "downloads are stored")
            found |= {prefix + m.client: m.bytes_down for m in members}
        return found

    def submit(self, rule, model):
        """Submit a run once all devices attend; its id."""
        self.attend()
        return self.top.submit(spec(rule, sites=self.sites), model)


@pytest.fixture
def tree(tmp_path):
    made = []

    def make(**settings):
        folder = tmp_path / f"{len(made)}"
        folder.mkdir()
        made.append(Tree(folder, **settings))
        return made[-1]

    yield make
    for each in made:
        each.close()


def check_same(rounds, flat):
    """Each round's model and metrics are those without sites."""
    committed = [r for r in rounds if r.state == "committed"]
    assert [r.accepted for r in committed] == [GOAL] * len(committed)
    assert len({r.model_out for r in committed}) == ROUNDS
    for ours, theirs in zip(rounds, flat, strict=True):
        assert (ours.state, ours.model_out) == (theirs.state, theirs.model_out)
        for kind in ("training", "evaluation"):
            mine, its = getattr(ours, kind) or {}, getattr(theirs, kind) or {}
            assert mine.get("values") == its.get("values")
            assert mine.get("histograms") == its.get("histograms")
            for name, extremes in mine.get("quantiles", {}).items():
                assert extremes == {share: its["quantiles"][name][share] for share in "01"}


@pytest.mark.longest
def test_every_rule_has_the_bits_of_a_server_of_all_devices(tree, model):
    """Numbers beside tensors, several models, memory of codecs, personal tensors, parts, noise.

    One device sends no tensors: averages over clients are not over it. Differences between models
    reach each device as they would without sites.
    """
    found, loaded = [], []
    for made in (tree(sites=False), tree(sites=True)):
        for site, (server, names) in made.places.items():
            made.train(site, made.enrol(server, names))
        runs = {rule: made.submit(RULES[rule], model) for rule in RULES}
        for run in runs.values():
            made.top.ended(run)
        runs["down"] = made.submit(DOWN, model)  # alone: a device keeps the models of few runs
        made.top.ended(runs["down"])
        found.append({rule: made.top.rounds(run) for rule, run in runs.items()})
        loaded.append(made.bytes_down(runs["down"], 2))
    for rule, flat in found[0].items():
        check_same(found[1][rule], flat)
    assert loaded[1] == loaded[0]
    assert max(loaded[0].values()) < model.stat().st_size
    for name in set(made.servers) - {"top"}:  # no run leaves a file but the first model of all
        folder = made.servers[name].state / "models"
        wait_until(lambda folder=folder: len(list(folder.iterdir())) == 1, f"{name} cleans up")


def through_a_lost_round(made, model, accepted):
    """The rounds of a run whose second is aborted when so many devices are accepted.

    One device stays in that round, and is started anew.
    """
    stuck = {}
    for site, (server, names) in made.places.items():
        configs = made.enrol(server, names)
        last = [configs.pop(names.index(n)) for n in names if n.split(".")[-1] == "four"]
        made.train(site, configs)
        stuck |= {site: last} if last else {}
    [(site, last)] = stuck.items()
    process = made.train(site, last, stuck=2)
    run = made.submit(SCAFFOLD, model)

    def waits():
        rounds = made.top.rounds(run)
        return len(rounds) == 2 and rounds[1].accepted == accepted

    if made.sites:
        north = made.servers["north"]
        north.wait_for_kill()
        north.launch("")
    wait_until(waits, f"{accepted} devices are accepted in round 2")
    made.top.control.post(f"runs/{run}/pause")
    made.top.control.post(f"runs/{run}/abort")
    process.kill()
    process.wait()
    made.train(site, last)
    made.attend()
    made.top.control.post(f"runs/{run}/resume")
    made.top.ended(run)
    return made.top.rounds(run)


def test_memory_is_that_of_the_last_round_that_counted(tree, model):
    """A site is killed with its first sum stored, and a sum that it has sent does not count.

    A device goes on from the control variates of the last round that counted at the top.
    """
    flat = through_a_lost_round(tree(sites=False), model, GOAL - 1)
    made = tree(sites=True, kill="site.sum.stored:1")
    rounds = through_a_lost_round(made, model, len(SITES["north"]))
    assert [r.state for r in rounds] == ["committed", "abandoned", "committed", "committed"]
    check_same(rounds, flat)
    run, north = rounds[0].run, made.servers["north"]
    assert [r.state for r in north.rounds(run)][:2] == ["committed", "abandoned"]
    record = (north.state / "upstream" / "members" / f"{run}.1.json").read_bytes()
    assert [each["name"] for each in json.loads(record)["members"]] == ["one", "two"]
    found = {m.client: m.members for m in made.top.ledger(lambda ledger: ledger.members(run, 1))}
    assert found["north"] == [member(f"sha256:{sha256(record).hexdigest()}", 2)]
