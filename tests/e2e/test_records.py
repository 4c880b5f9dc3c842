"""Records of each member's participation: over the API, with real clients."""

import asyncio

import numpy as np
import pytest

from fedloom.cli.connection.api_client import Control
from fedloom.protocol.transport import methods
from fedloom.protocol.v1 import fleet_pb2
from support.agents import Adder, Held, played, submit, until
from support.patience import PATIENCE_S

pytestmark = pytest.mark.e2e

SIZE = methods.OFFERED_MODEL_BYTES // 4
MODEL = {"w": np.zeros(SIZE, np.float32)}  # with its header too large to come with an offer
THREE = {"rounds": 1, "cohort": {"goal": 3, "quorum": 1, "patience_s": 60.0}}


class Breaks(Adder):
    """Fails."""

    def train(self, params, task):
        raise RuntimeError("the sensor is unplugged")


class Overflows(Adder):
    """Sends NaN."""

    def train(self, params, task):
        return {"w": np.full(SIZE, np.nan, np.float32)}, 1, {}


def ask(federation, *path, **query):
    """A document of the API, requested outside the server's event loop."""
    return asyncio.to_thread(Control(federation.directory).get, *path, **query)


@pytest.mark.long
def test_each_kind_of_session_has_its_record(tmp_path):
    """A counted, a failed and a refused one: client, reason, times and bytes."""

    async def scenario(federation, agents):
        await agents.start("ann", Adder(num_examples=7))
        await agents.start("bob", Breaks())
        await agents.start("cid", Overflows())
        run = await submit(federation, MODEL, **THREE)
        await federation.ended(run)
        return (
            await ask(federation, "runs", run, "rounds", "1"),
            await ask(federation, "runs", run, "rounds"),
        )

    detail, listed = played(tmp_path, scenario)
    ann, bob, cid = detail["members"]
    assert [m["client"] for m in detail["members"]] == ["ann", "bob", "cid"]
    assert [m["phase"] for m in detail["members"]] == ["reported", "failed", "refused"]
    assert [m["shape"] for m in detail["members"]] == ["-v[]+^", "-v[*", "-v[]+#"]
    assert "unplugged" in bob["reason"]
    assert (cid["code"], "finite values" in cid["reason"]) == ("not_finite", True)
    assert ann["num_examples"] == 7
    assert ann["norm"] == pytest.approx(SIZE**0.5)
    assert min(ann["bytes_down"], ann["bytes_up"]) > 4 * SIZE
    times = [
        ann[name]
        for name in ("offered_at", "took_at", "download_began_at", "download_ended_at",
                     "upload_began_at", "upload_ended_at", "accepted_at")
    ]  # fmt: skip
    assert times == sorted(times)
    [row] = listed["rounds"]
    counts = row["clients"]
    assert counts == detail["clients"]
    funnel = [counts[n] for n in ("selected", "took", "training", "uploaded", "counted")]
    assert funnel == [3, 3, 3, 1, 1]
    assert (counts["failed"], counts["refused"], counts["late"], counts["lost"]) == (1, 1, 0, 0)
    assert counts["shapes"] == {"-v[]+^": 1, "-v[*": 1, "-v[]+#": 1}
    assert counts["p50_s"] == counts["p95_s"] == ann["accepted_at"] - ann["offered_at"]
    assert counts["bytes_up"] >= ann["bytes_up"]


@pytest.mark.long
def test_an_open_round_has_its_present_record(tmp_path):
    """From memory; members without an update when the operator closes it are late."""

    async def scenario(federation, agents):
        slow = Held()
        await agents.start("ann", Adder())
        await agents.start("bob", slow)
        run = await submit(federation, MODEL, **THREE | {"cohort": {"goal": 2, "quorum": 1}})
        await asyncio.to_thread(slow.begun.wait, PATIENCE_S)
        await until(lambda: len(federation.ledger.accepted(run, 1)) == 1)
        during = await ask(federation, "runs", run, "rounds", "1")
        await federation.server.runs.command(run, "close")
        await federation.ended(run)
        slow.let_go.set()
        after = await ask(federation, "runs", run, "rounds", "1")
        return during, after, federation.ledger.round(run, 1)

    during, after, row = played(tmp_path, scenario)
    assert [m["phase"] for m in during["members"]] == ["reported", "training"]
    assert [m["shape"] for m in during["members"]] == ["-v[]+^", "-v["]
    assert during["state"] == "reporting"
    assert [m["phase"] for m in after["members"]] == ["reported", "late"]
    assert [m["shape"] for m in after["members"]] == ["-v[]+^", "-v[!"]
    assert row.summary["late"] == 1


@pytest.mark.long
def test_a_member_that_went_away_is_lost(tmp_path):
    """After its grace period the round closes without it."""

    async def scenario(federation, agents):
        slow = Held()
        await agents.start("ann", Adder())
        await agents.start("bob", slow)
        cohort = {"goal": 2, "quorum": 1, "patience_s": 0.0}
        run = await submit(federation, MODEL, **THREE | {"cohort": cohort})
        await asyncio.to_thread(slow.begun.wait, PATIENCE_S)
        await agents.stop("bob")
        await federation.ended(run)
        return await ask(federation, "runs", run, "rounds", "1")

    detail = played(tmp_path, scenario)
    assert [m["phase"] for m in detail["members"]] == ["reported", "lost"]
    assert detail["clients"]["lost"] == 1


@pytest.mark.long
def test_a_killed_server_loses_only_times_and_bytes(tmp_path):
    """The round still has its counted and failed members."""

    async def scenario(federation, agents):
        await agents.start("ann", Adder())
        await agents.start("bob", Breaks())
        records = federation.contexts.records
        records.take = lambda key: records._records.pop(key, {}) and {}
        federation.ledger.keep_records = lambda *_args, **_kwargs: None
        run = await submit(federation, MODEL, **THREE | {"cohort": {"goal": 2, "quorum": 1}})
        await federation.ended(run)
        return await ask(federation, "runs", run, "rounds", "1")

    detail = played(tmp_path, scenario)
    assert [m["phase"] for m in detail["members"]] == ["reported", "failed"]
    assert [m["bytes_up"] for m in detail["members"]] == [None, None]
    assert (detail["clients"]["selected"], detail["clients"]["counted"]) == (2, 1)


@pytest.mark.long
def test_members_of_buffers_are_recorded_in_the_round_of_their_task(tmp_path):
    """Every record ends, and none stays in memory."""

    async def scenario(federation, agents):
        for name in ("ann", "bob", "cid"):
            await agents.start(name, Adder())
        cohort = {"mode": "buffered", "goal": 2, "concurrency": 3}
        run = await submit(federation, MODEL, rounds=4, cohort=cohort)
        await federation.ended(run)
        rounds = (await ask(federation, "runs", run, "rounds"))["rounds"]
        numbers = [r["number"] for r in rounds]
        details = [await ask(federation, "runs", run, "rounds", str(n)) for n in numbers]
        return rounds, [m for d in details for m in d["members"]], federation.contexts.records

    rounds, members, records = played(tmp_path, scenario)
    counted = sum(m["phase"] == "reported" for m in members)
    assert sum(r["accepted"] for r in rounds) == counted >= 8
    assert {m["shape"] for m in members if m["phase"] == "reported"} == {"-v[]+^"}
    assert {m["phase"] for m in members} <= {"reported", "late"}
    assert records._records == {}


@pytest.mark.long
def test_rounds_come_page_by_page(tmp_path):
    """Newest first, each once; members by name."""

    async def scenario(federation, agents):
        for name in ("ann", "bob", "cid"):
            await agents.start(name, Adder())
        run = await submit(federation, MODEL, **THREE | {"rounds": 5})
        await federation.ended(run)
        pages, before = [], 0
        while before is not None:
            page = await ask(federation, "runs", run, "rounds", limit=2, before=before)
            pages.append([r["number"] for r in page["rounds"]])
            before = page["more"]
        members, after = [], ""
        while after is not None:
            page = await ask(federation, "runs", run, "rounds", "3", limit=2, after=after)
            members.append([m["client"] for m in page["members"]])
            after = page["more"]
        return pages, members

    assert played(tmp_path, scenario) == ([[5, 4], [3, 2], [1]], [["ann", "bob"], ["cid"]])


@pytest.mark.parametrize("failed", [False, True])
def test_reasons_of_a_client_cannot_control_a_display(runner, federation, failed):
    """Escape sequences, and characters that reverse the reading order, are stored as text."""

    async def scene():
        stream = await federation.attend(federation.enrol(f"odd-{failed}"))
        run = await submit(federation, MODEL, cohort={"goal": 1})
        said = {"task": (await stream.offer_of(run)).key, "reason": "\x1b[2J\u202esensor"}
        message = {"task_failed": said} if failed else {"offer_reply": said}
        await stream.say(fleet_pb2.ClientMessage(**message))
        phase = "failed" if failed else "declined"
        await until(lambda: [m.phase for m in federation.ledger.cohort(run, 1)] == [phase])
        (member,) = federation.ledger.cohort(run, 1)
        assert member.reason == r"\x1b[2J\u202esensor"
        await federation.server.runs.command(run, "stop")
        await stream.stop()

    runner.run(scene())
