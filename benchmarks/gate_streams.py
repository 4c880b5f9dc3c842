"""Idle streams over two gates: what the gates and the server that drives use meanwhile.

Each client has a certificate and a connection of its own (mTLS); a few processes hold them all, as
in `idle.py`. Measured for a minute: resident memory and processor time of each server, first
without any stream. Prints a table and writes out/gate_streams.json.
"""

import argparse
import asyncio
import time

from deployment import cpu_s, machine, memory_bytes, report
from gated import Gated, wait_for
from idle import AT_ONCE, answer, attend, spread

PATIENCE_S = 900.0


def hold(configs, pipe):
    """Attend for each of these clients, of which each has a server's address."""
    asyncio.run(_hold(configs, pipe))


async def _hold(configs, pipe):
    places = asyncio.Semaphore(AT_ONCE)
    streams = await asyncio.gather(*(attend(path, places, server=at) for path, at in configs))
    pipe.send(len(streams))
    await asyncio.to_thread(pipe.recv)


class Usage:
    """What processes use, from its making to `rows`."""

    def __init__(self, servers):
        self._pids = {name: server.process.pid for name, server in servers.items()}
        self._begun, self._cpu = time.monotonic(), self._now()

    def _now(self):
        return {name: cpu_s(pid) for name, pid in self._pids.items()}

    def rows(self, what):
        """A row for each process: memory in MiB, and percent of a core."""
        passed = time.monotonic() - self._begun
        for name, cpu in self._now().items():
            resident, _ = memory_bytes(self._pids[name])
            yield (
                f"{name}, {what}", resident / 2**20, 100 * (cpu - self._cpu[name]) / passed,
            )  # fmt: skip


def measure(num_streams, num_processes, idle_s, sources, pings):
    with Gated(2, sources, **pings) as gated:
        servers = {"driver": gated.driver} | {
            f"gate {number}": gate for number, gate in enumerate(gated.gates, 1)
        }
        time.sleep(10.0)
        usage = Usage(servers)
        time.sleep(idle_s)
        rows = [*usage.rows("no stream")]
        show(rows)
        if num_streams:
            configs = gated.enrol(
                [f"c{number:05d}" for number in range(num_streams)], **earlier(pings)
            )
            begun = time.monotonic()
            pipes = start(gated, [*configs.values()], num_processes)
            connected_s = time.monotonic() - begun
            wait_for(lambda: gated.driver.online() == num_streams, gated.driver.log)
            time.sleep(10.0)
            usage = Usage(servers)
            time.sleep(idle_s)
            idle = [*usage.rows(f"{num_streams} streams")]
            show(idle)
            rows += idle
            rows.append(("all streams began within s", connected_s, ""))
            for pipe in pipes:
                pipe.send("end")
        return rows


def earlier(pings):
    """The setting of clients, which ping before the server would: one of both is enough."""
    return {name: seconds * 11 / 12 for name, seconds in pings.items()}


def show(rows):
    for name, resident, percent in rows:
        print(f"{name}: {resident:.0f} MiB, {percent:.2f} % of a core", flush=True)


def start(gated, configs, num_processes):
    """Let client processes attend for all of these; they return when all are welcome."""
    places = [gate.settings.fleet for gate in gated.gates]
    given = [(path, places[number % len(places)]) for number, path in enumerate(configs)]
    pipes = spread(hold, given, num_processes)
    for pipe in pipes:
        answer(pipe, PATIENCE_S)
    return pipes


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--idle", type=float, default=60.0, help="seconds measured")
    parser.add_argument("--sources", default="", help="PYTHONPATH of other servers")
    parser.add_argument("--ping", type=float, help="ping_s of the servers; clients: 11/12 of it")
    arguments = parser.parse_args()
    pings = {"ping_s": arguments.ping} if arguments.ping else {}
    rows = measure(arguments.streams, arguments.processes, arguments.idle, arguments.sources, pings)
    print(f"load {machine()['load']}")
    report("gate_streams", ("", "MiB", "% of a core"), rows)


if __name__ == "__main__":
    main()
