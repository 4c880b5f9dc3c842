"""What people who watch cost: rounds and the server's CPU with 0 and with 10 viewers of one run.

    python benchmarks/console_viewers.py [--viewers 10] [--rounds 15] [--blocks 3] [--stream-only]

A real server and real clients, each in a process of their own; viewers are a third process that
does what browsers with the run's page open do: each logs in, holds /v1/events, and asks for the
page's live part anew when an event says that it has changed, at most once in two seconds, and every
twenty seconds for what only the clock changes. Blocks of rounds without and with viewers take
turns, so that both meet the same machine; the cost is the median of the differences of neighbours.
"""

import argparse
import asyncio
import contextlib
import http.client
import json
import multiprocessing
import random
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.scene import Scene

PACE_S, SOON_S, SPREAD_S, CLOCK_S = 2.0, 0.06, 0.2, 20.0
"""As in `console.js`."""


async def read_head(reader):
    """The status line and headers of an answer."""
    return (await reader.readuntil(b"\r\n\r\n")).decode()


class Browser:
    """A connection that is kept between requests, as browsers keep theirs."""

    def __init__(self, port, cookie):
        self._port, self._cookie = port, cookie
        self._streams = None

    async def fetch(self, path):
        """One answer's whole body."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\nAccept: text/html\r\n"
                     f"Cookie: {self._cookie}\r\n\r\n".encode())  # fmt: skip
        head = await read_head(reader)
        assert head.startswith("HTTP/1.1 200"), head
        length = re.search(r"content-length: (\d+)", head, re.IGNORECASE)
        await reader.readexactly(int(length[1]))


async def view(port, cookie, run, *, stream_only):
    """Watch a run as its page does."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET /v1/events HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nCookie: {cookie}\r\n\r\n"
                 .encode())  # fmt: skip
    assert " 200 " in await read_head(reader)
    standing, stale = None, asyncio.Event()
    asking = asyncio.ensure_future(ask(Browser(port, cookie), run, stale))
    while line := await reader.readline():
        if not line.startswith(b"event: ") or stream_only:
            continue
        name = line[7:].strip().decode()
        told = json.loads((await reader.readline())[6:])
        if asking.done():
            asking.result()
        if name == "run" and told["subject"] == run:
            stale.set()
        if name == "round" and told["now"]:
            now = (told["now"]["number"], told["now"]["state"])
            if now != standing:
                stale.set()
            standing = now
    writer.close()


async def ask(browser, run, stale):
    """Ask for the live part as often as its page does."""
    await browser.fetch(f"/v1/runs/{run}/curves")
    asked = 0.0
    while True:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stale.wait(), CLOCK_S)
        soon = SOON_S + SPREAD_S * random.random()
        await asyncio.sleep(max(soon, asked + PACE_S - time.monotonic()))
        stale.clear()
        asked = time.monotonic()
        await browser.fetch(f"/runs/{run}?part=live")


def viewers(port, cookies, run, stream_only):
    """The process of the viewers."""

    async def all_of_them():
        await asyncio.gather(
            *(view(port, cookie, run, stream_only=stream_only) for cookie in cookies)
        )

    asyncio.run(all_of_them())


def log_in(scene):
    """A session's cookie."""
    link = scene.control.post("login-links", body={"scope": "viewer"})["url"]
    connection = http.client.HTTPConnection("127.0.0.1", scene.port)
    connection.request("GET", link.removeprefix(scene.url))
    cookie = connection.getresponse().getheader("set-cookie").partition(";")[0]
    connection.close()
    return cookie


def block(scene, server, run, rounds):
    """Seconds of each of the next rounds, and the server's CPU meanwhile as a share of a core."""
    first = scene.run(run)["rounds_committed"] + 1
    scene.until(run, first, 120)
    begun, used = time.monotonic(), sum(server.cpu_times()[:2])
    scene.until(run, first + rounds, 600)
    cpu = (sum(server.cpu_times()[:2]) - used) / (time.monotonic() - begun)
    found = scene.control.get("runs", run, "rounds", limit=rounds)["rounds"]
    return [r["closed_at"] - r["opened_at"] for r in found if r["closed_at"]], cpu


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--viewers", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=15, help="in a block")
    parser.add_argument("--blocks", type=int, default=3, help="of each kind")
    parser.add_argument("--stream-only", action="store_true", help="hold the stream, ask no page")
    arguments = parser.parse_args()
    seconds, cpus = {0: [], 1: []}, {0: [], 1: []}
    with tempfile.TemporaryDirectory() as folder, Scene(Path(folder)) as scene:
        server = psutil.Process(scene.processes["server"].pid)
        run = scene.submit(rounds=5000, config={"delay_s": 1.0})
        for _ in range(arguments.blocks):
            for watched in (0, 1):
                process = None
                if watched:
                    cookies = [log_in(scene) for _ in range(arguments.viewers)]
                    process = multiprocessing.get_context("spawn").Process(
                        target=viewers,
                        args=(scene.port, cookies, run, arguments.stream_only),
                        daemon=True,
                    )
                    process.start()
                    time.sleep(2)
                taken, cpu = block(scene, server, run, arguments.rounds)
                seconds[watched] += taken
                cpus[watched].append(cpu)
                if process is not None:
                    assert process.is_alive(), "a viewer was turned away"
                    process.terminate()
                    process.join()
    for watched, words in ((0, "no viewer"), (1, f"{arguments.viewers} viewers")):
        times = sorted(seconds[watched])
        median, mean = statistics.median(times), statistics.mean(times)
        cpu = 100 * statistics.median(cpus[watched])
        print(f"{words:<12} {len(times):>3} rounds, median {median:.3f} s, mean {mean:.3f} s, "
              f"server {cpu:.1f} % of a core")  # fmt: skip
    slower = statistics.median(seconds[1]) / statistics.median(seconds[0]) - 1
    cost = statistics.median(b - a for a, b in zip(cpus[0], cpus[1], strict=True))
    print(f"rounds {100 * slower:+.1f} %; viewers cost {100 * cost:.2f} % of a core")


if __name__ == "__main__":
    main()
