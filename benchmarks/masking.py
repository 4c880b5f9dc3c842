"""What masking a session costs: a device's share of it, and the server's, without the network.

Prints a table and writes out/masking.json: medians of one thread's CPU time. `--threads` splits the
masks over threads, and is then in wall-clock time. Devices verify real chains of certificates. The
upload is the body and all messages of one device. `--sessions 16` also plays so many, as of 1,000
clients. `--flower PYTHON` has an interpreter with flwr make as many masks of the same size.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from fedloom.protocol import masking
from fedloom.protocol.trust.identity import build_csr, generate_key
from fedloom.server.pki.authority import Authority

IMPORT = """
import time
import fedloom.client.agent.agent
begun = time.process_time()
import {module}
print(time.process_time() - begun)
"""
FLOWER = """
import os, sys, time
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
masks, values = int(sys.argv[1]), int(sys.argv[2])
begun = time.process_time()
for _ in range(4):
    pseudo_rand_gen(os.urandom(32), 1 << 32, [(values,)])
print((time.process_time() - begun) / 4 * masks)
"""


def printed(python, program, *words):
    """The number that a program prints: seconds of CPU time."""
    command = [python, "-c", program, *map(str, words)]
    env = {n: v for n, v in os.environ.items() if n != "PYTHONDONTWRITEBYTECODE"}
    return float(
        subprocess.run(command, capture_output=True, check=True, text=True, env=env).stdout
    )


def session(size, values, bits, *, gone, threads, clock):
    """Seconds of each step of one session; `gone` members share and do not mask."""
    names = [f"client-{i:03}" for i in range(size)]
    now = datetime.now(UTC)
    keys = {name: generate_key() for name in names}
    with TemporaryDirectory() as folder:
        authority = Authority.create(Path(folder) / "pki", "bench", now)
    issued = {n: authority.issue_client(build_csr(key), n, 3600.0, now) for n, key in keys.items()}
    identify = masking.ChainVerifier(authority.root_pem, "bench", now)
    terms = masking.RoundTerms(
        federation="bench", run="r", round=1, attempt=1, core=bytes(32), group=128
    )
    spent = {}

    def timed(step, function, divided_by=1):
        start = clock()
        result = function()
        spent[step] = (clock() - start) / divided_by
        return result

    def member(name):
        (chain, peer), sign = issued[name], masking.signer(keys[name])
        return masking.Member(terms, name=name, serial=peer.serial, sign=sign, chain=chain)

    members = timed("device advert", lambda: [member(name) for name in names], size)
    adverts = [each.advert for each in members]
    dealt = timed("device join", lambda: [m.join(adverts, identify) for m in members], size)
    everyone = frozenset(range(size))
    sealed = [{j: dealt[j].shares[i] for j in everyone - {i}} for i in range(size)]
    timed(
        "device shares",
        lambda: [m.receive(everyone, sealed[i]) for i, m in enumerate(members)],
        size,
    )
    layout = masking.BodyLayout(sum_bits=bits, num_values=values, num_words=3)
    plain = masking.write_body(layout, [np.arange(values) % 1000 - 500], [1, 2, 3])
    body = plain.copy()
    timed("device mask", lambda: members[gone].mask(body, layout, threads=threads))
    small = masking.BodyLayout(sum_bits=16, num_values=0, num_words=1)
    for each in members[gone + 1 :]:
        each.mask(np.zeros(8, np.uint8), small)
    survivors = masking.Survivors(shared=everyone, masked=everyone - frozenset(range(gone)))
    rest = sorted(survivors.masked)
    agreed = timed(
        "device agree", lambda: {i: members[i].agree(survivors.masked) for i in rest}, len(rest)
    )
    roster = members[0].roster
    quorum = dict(list(agreed.items())[: roster.threshold])
    reveals = timed(
        "device reveal", lambda: {i: members[i].reveal(quorum) for i in quorum}, len(quorum)
    )
    timed(
        "server adverts", lambda: [masking.verify_advert(a, terms.pid, identify) for a in adverts]
    )
    messages = (adverts[gone], dealt[gone])
    sent = sum(len(each.to_bytes()) for each in messages) + len(agreed[gone])
    sent += len(reveals[min(reveals)].to_bytes(survivors))
    total = np.zeros(layout.size_bytes, np.uint8)
    timed("server add bodies", lambda: [masking.add_body(total, layout, plain) for _ in rest])
    found = timed(
        "server seeds",
        lambda: masking.recover(roster, survivors, dict(enumerate(dealt)), reveals, {}),
    )
    left = timed("server keys", lambda: masking.leftover_masks(roster, survivors, found.seeds))
    timed("server masks", lambda: masking.apply_streams(total, layout, left, threads=threads))
    for side in ("device", "server"):
        spent[f"{side} total"] = sum(s for step, s in spent.items() if step.startswith(side))
    upload = (layout.size_bytes + sent) / (4 * values)
    return spent | {"streams": len(left), "message bytes": sent, "upload ratio": upload}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--group", type=int, default=64)
    parser.add_argument("--values", type=int, default=1_000_000)
    parser.add_argument("--bits", type=int, default=32, choices=(16, 24, 32, 64))
    parser.add_argument("--gone", type=int, help="members that do not mask; default: one in ten")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sessions", type=int, help="also play so many, for the server's total")
    parser.add_argument("--flower", metavar="PYTHON", help="an interpreter with flwr")
    given = parser.parse_args()
    gone = given.group // 10 if given.gone is None else given.gone
    clock = time.thread_time if given.threads == 1 else time.perf_counter
    runs = [
        session(
            *(given.group, given.values, given.bits), gone=gone, threads=given.threads, clock=clock
        )
        for _ in range(given.repeats)
    ]
    found = {step: statistics.median(run[step] for run in runs) for step in runs[0]}
    for module in ("protocol.masking.member", "client.masking.tasks"):
        program = IMPORT.format(module=f"fedloom.{module}")
        times = [printed(sys.executable, program) for _ in range(4)]
        found[f"import {module}"] = statistics.median(times[1:])  # the first one compiles
    if given.sessions:
        sizes = (given.group, given.values, given.bits)
        more = (
            session(*sizes, gone=gone, threads=given.threads, clock=clock)
            for _ in range(given.sessions)
        )
        found[f"server, {given.sessions} sessions"] = sum(each["server total"] for each in more)
    if given.flower:
        for side, masks in (("device", given.group), ("server", found["streams"])):
            took = printed(given.flower, FLOWER, int(masks), given.values)
            found[f"Flower's {side} masks"] = took
    print(f"{given.group} members, {gone} gone, {given.values:,} values of {given.bits} bits")
    for step, value in found.items():
        unit = "" if step in {"streams", "message bytes", "upload ratio"} else " ms"
        print(f"{step:32}{value * (1000 if unit else 1):10.3f}{unit}")
    out = Path("out")
    out.mkdir(exist_ok=True)
    (out / "masking.json").write_text(json.dumps(vars(given) | found, indent=2))


if __name__ == "__main__":
    main()
