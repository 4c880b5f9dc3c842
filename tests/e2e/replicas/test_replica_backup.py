"""A replicated deployment is backed up while it runs, and restored elsewhere, as the docs say."""

import shutil
import subprocess
import sys
from dataclasses import replace

import pytest

from cluster import postgresql
from fedloom.server.config import write
from fedloom.server.storage.objects.opening import open_objects
from fedloom.server.store_url import StoreUrl
from support.ports import steady_port
from support.proxy import Proxy
from support.replicas import DEVICES, Replica, alone, check_all_counted, spec
from support.site_servers import Cluster, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.usefixtures("credentials")]

SPEC = spec(rounds=3, goal=len(DEVICES))
KEPT = ("server.toml", "master.key")
"""What a replica's folder keeps of its own."""


def copied(source, target):
    """Copy a bucket, as `aws s3 sync` does; the names."""
    old, new = (open_objects(StoreUrl.parse(url)) for url in (source, target))
    names = [each.name for each in old.list("")]
    for name in names:
        new.put(name, old.get(name))
    return names


def dump(server, source, target):
    """Copy a database by pg_dump and psql."""
    server.execute(f'CREATE DATABASE "{target}"')
    where = ["-h", "127.0.0.1", "-p", str(server.port), "-U", postgresql.USER]
    programs = postgresql.programs()
    dumped = subprocess.run(
        [programs / "pg_dump", *where, source], capture_output=True, text=True, check=True
    )
    restore = [programs / "psql", "-q", "-v", "ON_ERROR_STOP=1", *where, target]
    subprocess.run(restore, input=dumped.stdout, text=True, check=True, capture_output=True)


def command(replica, *words):
    done = subprocess.run(
        [sys.executable, "-m", "fedloom.cli.main", *words, "--dir", replica.state],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_a_backup_of_running_replicas_continues_elsewhere(tmp_path, database, s3, small_model):
    """With an open round. A lost object is told by name; once it is back, the bits are the same."""
    name, copy = tmp_path.name, f"{tmp_path.name}-restored"
    url, store, port = database.create(name), s3.url(name), steady_port()
    replica = Replica(tmp_path, "first", port, database=url, store=store)
    cluster, door = Cluster(tmp_path), Proxy(tmp_path, port, replica.settings)
    try:
        replica.start()
        door.wait_for_servers()
        configs = cluster.enrol(replica, DEVICES)
        quick = cluster.run_devices(replica, configs[:-1])
        last = cluster.run_devices(replica, configs[-1:], stuck=2)
        run = replica.submit(SPEC, small_model)

        def accepted():
            return replica.ledger(lambda ledger: ledger.accepted(run, 2))

        wait_until(lambda: len(accepted()) == len(DEVICES) - 1, "all but one")
        dump(database, name, copy)
        copied(store, s3.url(copy))
        for each in (quick, last):
            each.kill()
        replica.stop()
        for path in replica.state.iterdir():
            if path.name not in KEPT:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        lost = next(
            each.names[0]
            for file, each in replica.ledger(lambda ledger: ledger.body_objects())
            if file == accepted()[0].file
        )
        objects = open_objects(StoreUrl.parse(s3.url(copy)))
        data = objects.get(lost)
        objects.delete([lost])
        settings = {"database": database.url(copy), "store": s3.url(copy)}
        replica.settings = replace(replica.settings, **settings)
        write(replica.state, replica.settings)
        status, found = command(replica, "store", "check", "--objects")
        assert status == 5
        assert f"missing         {lost} of the update {accepted()[0].file}\n" in found
        assert " 1 of " in found
        replica.start()
        wait_until(lambda: f"the object {lost} of the update" in replica.log(), "it is told")
        cluster.run_devices(replica, configs)
        wait_until(lambda: len(accepted()) == len(DEVICES), "the last one reports")
        assert len(replica.rounds(run)) == 2
        objects.put(lost, data)
        restored = replica.ended(run).model
        check_all_counted(replica, run)
        assert command(replica, "store", "check", "--objects")[0] == 0
        assert command(replica, "audit", "verify")[0] == 0
    finally:
        cluster.close()
        replica.stop()
        door.close()
    apart = tmp_path / "apart"
    apart.mkdir()
    assert restored == alone(apart, small_model, SPEC)
