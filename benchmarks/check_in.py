"""Devices that check in: a million on the virtual clock, and real handshakes with a real server.

    python benchmarks/check_in.py [--devices 1000000] [--per-minute 5000] [--seconds 60]

First a fleet of a million devices, one each two hours, with rounds of 1,000 one after another, all
of which draw from those that wait, and an outage of four hours. Figures are of CPU seconds on one
core; nothing is trained.

Then clients with certificates of their own. Each check-in is a connection: TCP, TLS 1.3 with both
certificates, hello, welcome, a wait of `hold_s`, goodbye, and the end. They begin evenly spread, as
many a minute as asked for, whatever the server does; an error is anything but a welcome and a
goodbye. Client processes and server share the machine's cores. Prints a table and writes
out/check_in.json.
"""

import argparse
import asyncio
import multiprocessing
import time
from statistics import median

import numpy as np
from deployment import cpu_s, deployed, memory_bytes, report
from wire import Stream, open_channel

from fedloom.server.check_in_pace import CheckInRules
from fedloom.server.engine import RoundConfig, uniform
from fedloom.simulation.clock.check_in_fleet import CheckInFleet
from fedloom.simulation.data.population import numbered

SPAWN = multiprocessing.get_context("spawn")
HOUR_S = 3600.0
WAIT_S = 60.0
"""Longest time for a welcome or a goodbye; later it is an error."""


def virtual(num_devices):
    """A day of a fleet; returns rows of a table."""
    rules = CheckInRules()
    outage = (8 * HOUR_S, 12 * HOUR_S)
    fleet = CheckInFleet(numbered(num_devices), rules, spread_s=rules.every_s, outage_s=outage)
    begin = time.process_time()
    fleet.play(24 * HOUR_S)
    alone_s = time.process_time() - begin
    with_rounds = CheckInFleet(numbered(num_devices), rules, spread_s=rules.every_s)
    begin = time.process_time()
    with_rounds.play(4 * HOUR_S, RoundConfig(goal=1000), lambda number: uniform(1, number))
    rounds_s = time.process_time() - begin
    rate = fleet.per_minute / 60
    quiet, back = rate[240:480], rate[720:]
    waits = [draw.opened_s - draw.wanted_s for draw in with_rounds.draws[1:]]
    return [
        ("virtual: devices", num_devices, ""),
        ("check-ins of a day, with an outage", fleet.check_ins, ""),
        ("check-ins/s of a core", fleet.check_ins / alone_s, ">= 200,000"),
        ("the same with rounds of 1,000, a minute each",
         with_rounds.check_ins / rounds_s, ">= 200,000"),
        ("rounds", len(with_rounds.draws), ""),
        ("devices that wait when a round draws, median",
         median(draw.waiting for draw in with_rounds.draws), ""),
        ("wait of a round for its draw, most, s", max(waits), ""),
        ("arrivals/s: mean", float(quiet.mean()), f"{num_devices / rules.every_s:.0f} on paper"),
        ("arrivals/s: busiest minute", float(quiet.max()), ""),
        ("arrivals/s after 4 h of outage: busiest minute", float(back.max()), "2 x the mean"),
    ]  # fmt: skip


# ---- real handshakes -----------------------------------------------------------------------------


def run_clients(configs, number, num_processes, settings, pipe):
    """Check in with these clients, in turn; sends the results of each."""
    pipe.send(asyncio.run(_run(configs, number, num_processes, settings)))


async def _run(configs, number, num_processes, settings):
    per_minute, seconds, begin = settings
    every_s, count = 60.0 / per_minute, int(per_minute * seconds / 60)
    visits = []
    for turn in range(number, count, num_processes):
        await asyncio.sleep(max(0.0, begin + turn * every_s - time.monotonic()))
        path = configs[(turn // num_processes) % len(configs)]
        visits.append(asyncio.ensure_future(_visit(path)))
    return await asyncio.gather(*visits)


async def _visit(path):
    """Seconds until the welcome and until the goodbye, and the time that was told; or an error."""
    begun = time.monotonic()
    channel = open_channel(path)
    try:
        async with asyncio.timeout(WAIT_S):
            stream = await Stream(path.parent.name, channel, check_in=True).begin()
            welcome_s = time.monotonic() - begun
            async for message in stream.messages():
                if message.HasField("goodbye"):
                    stream.cancel()
                    goodbye_s = time.monotonic() - begun
                    return welcome_s, goodbye_s, message.goodbye.next_check_in_s
            return await stream.details()
    except Exception as error:  # noqa: BLE001 - each is counted
        return repr(error)
    finally:
        await channel.close()


def real(per_minute, seconds, num_clients, num_processes, hold_s):
    """Check-ins with a server; returns rows of a table."""
    names = [f"c{i:05d}" for i in range(num_clients)]
    with deployed(names, check_in=CheckInRules(hold_s=hold_s)) as deployment:
        configs = list(deployment.clients.values())
        time.sleep(1.0)
        cpu, begin, pipes = cpu_s(deployment.pid), time.monotonic() + 5.0, []
        for number in range(num_processes):
            here, there = SPAWN.Pipe()
            mine = configs[number::num_processes]
            settings = (per_minute, seconds, begin)
            arguments = (mine, number, num_processes, settings, there)
            SPAWN.Process(target=run_clients, args=arguments, daemon=True).start()
            pipes.append(here)
        found = [each for pipe in pipes for each in pipe.recv()]
        took_s = time.monotonic() - begin
        cpu, (_, peak) = cpu_s(deployment.pid) - cpu, memory_bytes(deployment.pid)
    done = np.array([each for each in found if not isinstance(each, str)])
    errors = [each for each in found if isinstance(each, str)]
    for each in errors[:5]:
        print(each)
    welcome, goodbye, told = done.T
    return [
        ("real: check-ins", len(found), ""),
        ("a minute, without the last wait", 60 * len(found) / (took_s - hold_s), f"{per_minute}"),
        ("errors", len(errors), "0"),
        ("until the welcome, median, s", float(np.median(welcome)), ""),
        ("until the welcome, 99 %, s", float(np.quantile(welcome, 0.99)), ""),
        (f"until the goodbye beyond {hold_s:g} s, 99 %, s",
         float(np.quantile(goodbye, 0.99)) - hold_s, ""),
        ("next check-in told, mean, s", float(told.mean()), "7,200"),
        ("server: CPU ms a check-in", 1000 * cpu / len(found), ""),
        ("server: peak memory, MiB", peak / 2**20, ""),
    ]  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=1_000_000, help="0: none on the clock")
    parser.add_argument("--per-minute", type=int, default=5000, help="0: no real ones")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=1500)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--hold", type=float, default=5.0)
    given = parser.parse_args()
    rows = virtual(given.devices) if given.devices else []
    if given.per_minute:
        rows += real(given.per_minute, given.seconds, given.clients, given.processes, given.hold)
    report("check_in", ("", "measured", "target"), rows)


if __name__ == "__main__":
    main()
