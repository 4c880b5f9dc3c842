"""How fast updates are taken in, beside a bare gRPC sink under the same mTLS in the same run.

Ours is all of it: checksum, checks of every value, spool, sync, ledger row, acknowledgement, and
the exact fold behind. The sink has the same certificates, options, chunks and client processes and
only counts the bytes. Both are measured in turns. Prints a table and writes out/upload.json.

The clients are processes of their own that send bodies made before, by the client's real `upload`.
A time runs from the first client's `proceed` to the last one's `accepted`; of ours also until the
last update is folded and until the round is committed.
"""

import argparse
import asyncio
import multiprocessing
import resource
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from deployment import cpu_s, deployed, free_port, model, report
from wire import Stream, header_for, open_channel

from fedloom.client.config import load
from fedloom.client.network import transfer
from fedloom.client.state.store import ClientStore
from fedloom.protocol.manifest import read_manifest
from fedloom.protocol.tensors.container import write_file
from fedloom.protocol.updates.message import TensorPart, write_body
from fedloom.protocol.v1 import fleet_pb2
from fedloom.strategies import DELTA, Full

SPAWN = multiprocessing.get_context("spawn")
START_S = 0.2
PATIENCE_S = 120.0


@dataclass(frozen=True)
class Body:
    """An update that was made before: its file and what its header says."""

    path: Path
    header: bytes


def make_body(directory, params):
    """The body of an update to a model, as a client would have written it."""
    write_file(directory / "model.safetensors", params)
    manifest = read_manifest(directory / "model.safetensors")
    parts = [TensorPart(DELTA, name, Full(), each) for name, each in deltas(params).items()]
    path = directory / "body"
    described, size, crc = write_body(path, parts, manifest)
    header = fleet_pb2.UpdateHeader(weight=32.0, size_bytes=size, crc32c=crc, parts=described)
    header.training.num_examples = 32
    return Body(path, header.SerializeToString())


def deltas(params):
    """The values of that update."""
    rng = np.random.default_rng(1)
    return {n: 0.01 * rng.standard_normal(a.shape, dtype=np.float32) for n, a in params.items()}


# ---- the clients -------------------------------------------------------------------------------


class TimedStore(ClientStore):
    """A store that notes when its body is asked for: at `proceed`."""

    def __init__(self, directory):
        super().__init__(directory)
        self.proceed = 0.0

    def body_path(self, run, number):
        self.proceed = time.monotonic()
        return super().body_path(run, number)


def uploader(config_path, body, sink_address, pipe):
    """A client process: takes offers, sends the body made before to whom the parent says."""
    asyncio.run(_uploader(config_path, body, sink_address, pipe))


async def _uploader(path, body, sink_address, pipe):
    config = load(path)
    store = TimedStore(config.state_dir)
    name = config.state_dir.parent.name
    ours, theirs = open_channel(path), open_channel(path, server=sink_address)
    await asyncio.gather(ours.channel_ready(), theirs.channel_ready())
    attend = await Stream(name, ours).begin()
    pipe.send("attending")
    while (command := await asyncio.to_thread(pipe.recv)) != "end":
        if command == "server":
            offer = await _offer(attend)
        else:
            offer = fleet_pb2.Task(key=fleet_pb2.TaskKey(run="sink", round=1))
        header = header_for(body.header, name, offer)
        path = store.body_path(header.task.run, header.task.round)
        path.unlink(missing_ok=True)
        path.hardlink_to(body.path)
        pipe.send("ready")
        start = await asyncio.to_thread(pipe.recv)
        await asyncio.sleep(max(0.0, start - time.monotonic()))
        cpu = _own_cpu_s()
        channel = ours if command == "server" else theirs
        await transfer.upload(channel, header, store, "the server")
        pipe.send((store.proceed, time.monotonic(), _own_cpu_s() - cpu))
        path.unlink()
    attend.cancel()


async def _offer(attend):
    async for offer in attend.offers():
        await attend.accept(offer)
        return offer
    raise RuntimeError("the stream of offers ended")


def _own_cpu_s():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Clients:
    """The client processes, led through pipes."""

    def __init__(self, deployment, body, sink_address):
        self.gb = len(deployment.clients) * body.path.stat().st_size / 1e9
        self.pipes = []
        self.processes = []
        for config in deployment.clients.values():
            here, there = SPAWN.Pipe()
            process = SPAWN.Process(
                target=uploader, args=(config, body, sink_address, there), daemon=True
            )
            process.start()
            self.pipes.append(here)
            self.processes.append(process)
        self._all("attending")

    def _all(self, expected=None):
        answers = []
        for pipe in self.pipes:
            if not pipe.poll(PATIENCE_S):
                raise RuntimeError("a client does not answer")
            answers.append(pipe.recv())
        if expected is not None and set(answers) != {expected}:
            raise RuntimeError(f"Expected {expected} from the clients, got {answers}.")
        return answers

    def upload(self, target):
        """Everybody sends at once; returns first proceed, last accepted, and their CPU seconds."""
        for pipe in self.pipes:
            pipe.send(target)
        self._all("ready")
        start = time.monotonic() + START_S
        for pipe in self.pipes:
            pipe.send(start)
        times = self._all()
        return min(t[0] for t in times), max(t[1] for t in times), sum(t[2] for t in times)

    def end(self):
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            pipe.send("end")
            process.join(20)
            process.kill()


def measure(arguments, directory):
    names = [f"c{i}" for i in range(arguments.clients)]
    params = model(arguments.values)
    body = make_body(directory, params)
    with deployed(names) as deployment:
        port = free_port()
        peer = deployment.launch("sink.py", str(port))
        clients = Clients(deployment, body, f"127.0.0.1:{port}")
        run = deployment.submit(params, spec(arguments))
        try:
            return [
                one(deployment, clients, peer.pid, run, number)
                for number in range(1, arguments.repeats + 2)
            ]
        finally:
            clients.end()


def spec(arguments):
    cohort = {"goal": arguments.clients, "quorum": arguments.clients, "deadline_s": 3600.0}
    return {
        "name": "upload",
        "rounds": arguments.repeats + 2,
        "evaluate": False,
        "cohort": cohort,
        "train": {"steps": 1, "learning_rate": 1.0},
    }


def one(deployment, clients, peer_pid, run, number):
    """One repetition: the sink, then ours."""
    size = clients.gb
    cpu = cpu_s(peer_pid)
    first, last, client_cpu = clients.upload("sink")
    found = {
        "sink_s": last - first,
        "sink_server_cpu_s_per_gb": (cpu_s(peer_pid) - cpu) / size,
        "sink_client_cpu_s_per_gb": client_cpu / size,
    }
    cpu = cpu_s(deployment.pid)
    first, last, client_cpu = clients.upload("server")
    accepted_cpu = cpu_s(deployment.pid) - cpu
    while len(deployment.rounds(run)) < number:
        time.sleep(0.05)
    committed_cpu = cpu_s(deployment.pid) - cpu
    events = [e for e in deployment.events() if e.begin >= first]
    folds = [e for e in events if e.name == "fold"]
    found |= {
        "accepted_s": last - first,
        "folded_s": max(e.end for e in folds) - first,
        "committed_s": max(e.end for e in events if e.name == "commit_round") - first,
        "accepted_server_cpu_s_per_gb": accepted_cpu / size,
        "folded_server_cpu_s_per_gb": (max(e.process_cpu_s for e in folds) - cpu) / size,
        "committed_server_cpu_s_per_gb": committed_cpu / size,
        "client_cpu_s_per_gb": client_cpu / size,
        "sync_s": sum(e.end - e.begin for e in events if e.name == "fdatasync" and e.end < last),
        "fold_s": sum(e.end - e.begin for e in folds),
        "gb": size,
    }
    print(
        f"  {number - 1}: sink {size / found['sink_s']:.2f} GB/s, "
        f"ours {size / found['accepted_s']:.2f} accepted, {size / found['folded_s']:.2f} folded",
        file=sys.stderr,
    )
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--values", type=int, default=10_000_000, help="float32 of the model")
    parser.add_argument("--repeats", type=int, default=9, help="after one that warms up")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        found = measure(arguments, Path(temporary))
    warm, kept = found[0], found[1:]

    def middle(of):
        return statistics.median(of(f) for f in kept)

    rows = []
    for label, key, server, client in (
        ("bare sink", "sink_s", "sink_server_cpu_s_per_gb", "sink_client_cpu_s_per_gb"),
        ("ours, accepted", "accepted_s", "accepted_server_cpu_s_per_gb", "client_cpu_s_per_gb"),
        ("ours, folded", "folded_s", "folded_server_cpu_s_per_gb", "client_cpu_s_per_gb"),
        ("ours, committed", "committed_s", "committed_server_cpu_s_per_gb", "client_cpu_s_per_gb"),
    ):
        rows.append(
            (
                label,
                middle(lambda f, key=key: f["gb"] / f[key]),
                middle(lambda f, key=key: f["sink_s"] / f[key]),
                warm["sink_s"] / warm[key],
                middle(lambda f, server=server: f[server]),
                middle(lambda f, client=client: f[client]),
            )
        )
    columns = (
        "", "GB/s", "ratio to sink", "in a first round", "server CPU s/GB", "client CPU s/GB",
    )  # fmt: skip
    report("upload", columns, rows, repeats=found)
    print(f"target: a ratio of at least 0.5; {len(kept)} repeats, medians")


if __name__ == "__main__":
    main()
