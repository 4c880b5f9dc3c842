"""Real agents survive a faulty or hostile server, even one with a valid signing key.

Invalid data is refused, recorded in the journal and reported to the server. The agent keeps its
connection and takes part in the next, honest round. Files outside its state directory do not
change.
"""

import io
import json
import zlib

import numpy as np
import pytest

from fedloom.client.agent.task_queue import MAX_TASKS
from fedloom.protocol.tensors.container import write_params
from fedloom.protocol.transport import methods
from fedloom.protocol.v1 import fleet_pb2
from support.agents import Held, until
from support.hostile import PARAMS, scene

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def device(runner, federation, tmp_path_factory):
    """An agent, and the server that it is connected to, for all tests."""
    context = scene(federation, tmp_path_factory.mktemp("device"), "device")
    yield runner.run(context.__aenter__())
    runner.run(context.__aexit__(None, None, None))


def set_fields(**fields):
    """A change of some fields of a task, by their dotted names with __."""

    def change(task):
        for name, value in fields.items():
            *path, last = name.split("__")
            message = task
            for part in path:
                message = getattr(message, part)
            setattr(message, last, value)

    return change


def rule(name, **settings):
    def change(task):
        task.rule.name = name
        task.rule.settings.update(settings)

    return change


def add_difference(base, digest):
    def change(task):
        step = task.differences.add(base=base)
        step.difference.digest, step.difference.size_bytes = digest, 100

    return change


ABSURD = {
    "a path as digest": set_fields(model__digest="../../../etc/passwd"),
    "a path as digest of what comes beside": set_fields(received__digest="../x"),
    "a digest in capitals": set_fields(model__digest="AB" * 32),
    "no digest": set_fields(model__digest=""),
    "a path as base": add_difference("../x", "ab" * 32),
    "a path as difference": add_difference("ab" * 32, "../x"),
    "a path as run": set_fields(key__run="../../x"),
    "a pattern as run": set_fields(key__run="*"),
    "no run": set_fields(key__run=""),
    "round 0": set_fields(key__round=0),
    "an exabyte of model": set_fields(model__size_bytes=1 << 60),
    "more than any file": set_fields(model__size_bytes=(1 << 64) - 1),
    "a billion epochs": set_fields(train__epochs=1_000_000_000),
    "four billion steps": set_fields(train__steps=4_000_000_000),
    "a learning rate of NaN": set_fields(train__learning_rate=float("nan")),
    "an infinite clip": set_fields(train__clip_norm=float("inf")),
    "a deadline of NaN": set_fields(deadline_s=float("nan")),
    "a clip of NaN": set_fields(privacy__clip=float("nan")),
    "noise below nothing": set_fields(privacy__clip=1.0, privacy__noise_multiplier=-1.0),
    "a rule nobody knows": set_fields(rule__name="exec"),
    "a billion models": rule("ifca", clusters=1e9),
    "a codec nobody knows": set_fields(compression__codec="pickle"),
    "a kind nobody knows": set_fields(kind=77),
    "a weighting nobody knows": set_fields(weighting=99),
    "an own model nobody knows": set_fields(personal__name="evil"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", ABSURD)
def test_an_invalid_offer_is_refused_before_any_work(runner, device, name):
    """The reason is in the ledger and in the owner's journal."""
    s, federation = device, device.federation
    stream = s.begin()

    async def main():
        s.tampered.once(s.tampered.task(ABSURD[name]))
        run = await s.run()
        if name in ("a path as run", "a pattern as run", "no run", "round 0"):
            await until(lambda: s.journal("refused"))  # the reply names a round that does not exist
        else:
            reason = await s.declined(run)
            assert "Expected" in reason
        (entry,) = s.journal("refused")
        assert "Expected" in entry["text"]
        await s.stop(run)
        await s.takes_part()
        assert federation.contexts.fleet.get("device") is stream
        assert not s.strangers()

    runner.run(main())


def container(params):
    file = io.BytesIO()
    write_params(file, params)
    return file.getvalue()


def framed(entries, data=b"", length=None):
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


W = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}

BAD_MODELS = {
    "no container": b"not a model at all",
    "nothing": b"",
    "a header of an exabyte": framed({"w": W}, bytes(8), length=1 << 60),
    "a header longer than allowed": framed(b"{}" + b" " * (17 << 20)),
    "more in the header than in the file": framed(
        {"w": W | {"shape": [9], "data_offsets": [0, 36]}}
    ),
    "a shape that does not fit the bytes": framed({"w": W | {"shape": [3]}}, bytes(8)),
    "tensors that overlap": framed({"w": W, "v": W}, bytes(8)),
    "bytes that nobody names": framed({"w": W}, bytes(16)),
    "a dtype nobody knows": framed({"w": W | {"dtype": "OBJ"}}, bytes(8)),
    "JSON that never ends": framed(b"[" * 100_000),
    "a negative offset": framed({"w": W | {"data_offsets": [-8, 0]}}, bytes(8)),
    "NaN": container({"w": np.array([1.0, np.nan], np.float32)}),
    "no tensor": container({}),
    "an escape sequence as name": framed({"w\x1b[2J": W}, bytes(8)),
    "a name without end": framed({"w" * (1 << 20): W}, bytes(8)),
}


@pytest.mark.long
@pytest.mark.parametrize("name", BAD_MODELS)
def test_an_invalid_model_with_the_right_digest_is_refused(runner, device, name):
    """The training code does not receive it, and its file is deleted."""
    s, federation = device, device.federation
    stream = s.begin()

    async def main():
        digest = s.put(BAD_MODELS[name])
        size = len(BAD_MODELS[name])
        s.tampered.once(s.tampered.task(set_fields(model__digest=digest, model__size_bytes=size)))
        run = await s.run()
        assert "refused by the device" in await s.phase(run, "failed")
        assert s.journal("refused")
        assert not (s.state / "models" / f"{digest}.safetensors").exists()
        await s.stop(run)
        await s.takes_part()
        assert federation.contexts.fleet.get("device") is stream

    runner.run(main())


@pytest.mark.long
@pytest.mark.parametrize("lie", ["other bytes", "more bytes", "fewer bytes", "less promised"])
def test_wrong_bytes_are_refused_after_a_few_attempts(runner, device, monkeypatch, lie):
    """The agent retries, because the network may be at fault, but not forever."""
    monkeypatch.setattr("fedloom.client.network.connection.JITTER.uniform", lambda *_: 0.0)
    s, stream = device, device.begin()
    good = container({"w": np.full(3, len(lie), np.float32)})
    digest, size = s.put(good), len(good)
    path = s.federation.contexts.models.path(digest)
    if lie == "less promised":
        size -= 8
    else:
        sent = {"other bytes": bytes(size), "more bytes": good + bytes(9), "fewer bytes": good[:-9]}
        path.write_bytes(sent[lie])

    async def main():
        promise = set_fields(model__digest=digest, model__size_bytes=size)
        s.tampered.once(s.tampered.task(promise))
        run = await s.run()
        assert "refused by the device" in await s.phase(run, "failed")
        assert "3 times" in s.journal("refused")[-1]["text"]
        await s.stop(run)
        await s.takes_part()
        assert s.federation.contexts.fleet.get("device") is stream

    runner.run(main())


def bomb():
    """A lossless difference of a few bytes whose data inflate to a gigabyte."""
    data = zlib.compress(bytes(1 << 26), 9)
    deflated = np.frombuffer(data[:20], np.uint8)
    note = {
        "codec": "lossless",
        "settings": {"level": 1.0},
        "tensors": [{"name": "w", "arrays": ["lengths", "data"], "seed": "0"}],
    }
    return container(
        {
            "0.lengths": np.array([len(deflated)], np.uint32),
            "0.data": deflated,
            "note": np.frombuffer(json.dumps(note).encode(), np.uint8),
        }
    )


def seeded(seed):
    """A difference whose places are drawn by a seed."""
    tensor = {"name": "w", "arrays": ["values"], "seed": seed}
    note = {"codec": "random_k", "settings": {"fraction": 0.5, "scaled": 0}, "tensors": [tensor]}
    text = np.frombuffer(json.dumps(note).encode(), np.uint8)
    return container({"0.values": np.ones(3, np.float32), "note": text})


def listing(tensors, **arrays):
    note = {"codec": "lossless", "settings": {"level": 1.0}, "tensors": tensors}
    arrays["note"] = np.frombuffer(json.dumps(note).encode(), np.uint8)
    return container(arrays)


BAD_DIFFERENCES = {
    "a bomb": bomb(),
    "no container": b"nothing of the kind",
    "a seed beyond any number": seeded("9" * 50),
    "a seed below nothing": seeded("-1"),
    "no note": container({"x": np.zeros(3, np.float32)}),
    "a note that never ends": container({"note": np.frombuffer(b"[" * 50_000, np.uint8)}),
    "a tensor that the model lacks": listing([{"name": "x"}], **{"0": np.zeros(3, np.float32)}),
    "a tensor of another shape": listing([{"name": "w"}], **{"0": np.zeros(9, np.float32)}),
    "a tensor many times": listing(
        [{"name": "b"}] * 500, **{str(i): np.zeros(3, np.float32) for i in range(500)}
    ),
    "another model": listing([{"name": "b"}], **{"0": np.ones(3, np.float32)}),
    "names that are none": listing([3, None, ["w"]]),
}


@pytest.mark.long
@pytest.mark.parametrize("name", BAD_DIFFERENCES)
def test_a_wrong_difference_costs_only_a_download(runner, device, name):
    """The journal records it; the agent downloads the whole model and sends its update."""
    s, federation = device, device.federation
    s.begin()

    async def main():
        await s.takes_part()
        digest = s.put(BAD_DIFFERENCES[name])
        base = s.put(container(PARAMS))
        other = s.put(
            container({n: a + 5 + list(BAD_DIFFERENCES).index(name) for n, a in PARAMS.items()})
        )

        def astray(task):
            step = task.differences.add(base=base)
            step.difference.digest = digest
            step.difference.size_bytes = len(BAD_DIFFERENCES[name])

        s.tampered.once(s.tampered.task(astray))
        run = await s.run(model=other)
        await federation.ended(run)
        assert federation.ledger.run(run).state == "finished"
        assert any("difference" in e["text"] for e in s.journal("refused"))

    runner.run(main())


def test_a_message_too_long_ends_only_the_stream(runner, device):
    """The agent reconnects with backoff and takes part in the next round."""
    s, federation = device, device.federation
    stream = s.begin()

    async def main():
        huge = fleet_pb2.ServerMessage()
        huge.signed_offer.statement = bytes(methods.MAX_MESSAGE_BYTES + 1)
        s.tampered.once(lambda *_: huge)
        run = await s.run()
        await until(lambda: federation.contexts.fleet.get("device") is not stream)
        await s.stop(run)
        await until(lambda: federation.contexts.fleet.get("device") is not None)
        assert "longer than" in s.journal("refused")[0]["text"]
        await s.takes_part()

    runner.run(main())


def test_excess_offers_are_declined_without_harm_to_other_tasks(runner, federation, tmp_path):
    """A few are accepted, and each of those sends its update."""

    async def main():
        client = Held()
        async with scene(federation, tmp_path, "flooded", client) as s:
            offers = []
            s.tampered.once(lambda to, task, honest: offers.append((to, task)) or honest)
            run = await s.run()
            await until(client.begun.is_set)
            (to, task), stream = offers[0], federation.contexts.fleet.get("flooded")
            for number in range(2, 40):
                task.key.round = number
                await stream.send(s.tampered.signed(to, task, issued_us=(1 << 62) + number))
            await until(lambda: len(s.journal("declined")) == 39 - MAX_TASKS)
            client.let_go.set()
            # The ledger has only the first round; the others were invented.
            await until(lambda: len(s.journal("rejected")) == MAX_TASKS - 1)
            await federation.ended(run)
            assert len(s.journal("accepted")) == 1
            assert not s.journal("failed")

    runner.run(main())


def test_a_withdrawal_with_a_path_removes_no_file(runner, device):
    """Files outside the outbox stay, for any name of a run."""
    s, federation = device, device.federation
    s.begin()

    async def main():
        precious = s.state.parent / "x.1.header"
        precious.write_text("mine")
        key = fleet_pb2.TaskKey(run="../../x", round=1)
        withdraw = fleet_pb2.Withdraw(task=key, reason="\x1b[31mred\n")
        federation.contexts.fleet.send("device", fleet_pb2.ServerMessage(withdraw=withdraw))
        await until(lambda: s.journal("refused"))
        assert precious.read_text() == "mine"
        await s.takes_part()

    runner.run(main())


def test_an_honest_round_is_recorded_in_the_journal(runner, device):
    """What is sent, to whom, from how many examples: before sending and on arrival."""
    device.begin()
    runner.run(device.takes_part())
    (sent,), (accepted,) = device.journal("sent"), device.journal("accepted")
    assert sent["tensors"] == ["b", "w"]
    assert sent["num_examples"] == 1
    assert sent["server"] in sent["text"]
    assert "how 2 tensors (b, w) changed by training on 1 examples" in sent["text"]
    assert "measured step 1" in sent["text"]
    assert sent["run"] in accepted["text"]
