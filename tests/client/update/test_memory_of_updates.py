"""An update needs little memory, and has the same bits as one that is made in memory.

Its scratch space on the disk is within what the budget gate reserves for the task. The bounds
are in models, above the training's own. The model is one tensor, the worst case.
"""

import tracemalloc

import numpy as np
import pytest

from fedloom.client import Client, MaskOf, SliceOf, Update
from fedloom.client.agent.task_run import TaskRun, task_from_message
from fedloom.client.budgets.gate import written as written_models
from fedloom.client.owner.policy import Policy, Protection
from fedloom.client.state.store import ClientStore
from fedloom.client.testing.asked import RunSettings, written
from fedloom.client.training.client_rule import RuleContext, RuleOutput, apply_rule
from fedloom.client.update.clip_and_noise import Guard
from fedloom.client.update.compress import ERROR, compress
from fedloom.protocol.manifest import Manifest
from fedloom.protocol.tensors.container import write_params
from fedloom.protocol.tensors.file_arrays import Scratch
from fedloom.protocol.tensors.model_differences import make
from fedloom.protocol.updates.compression import scheme
from fedloom.protocol.updates.message import TensorPart, write_body
from fedloom.protocol.v1 import fleet_pb2
from fedloom.strategies import DELTA, Full, Mask, RoundSettings, Slice, TensorSpec
from fedloom.strategies.exact.lazy_arrays import Held

MODEL = {"w": np.linspace(-1, 1, 1_500_000, dtype=np.float32).reshape(1500, 1000)}
MODEL_BYTES = MODEL["w"].nbytes
MOST, MOST_ENCODED = 1.0, 2.0
"""Models above the training's own: buffers alone; a tensor that is encoded, and its code."""

CODECS = {
    "fp16": {},
    "bf16": {},
    "int8": {},
    "int4": {},
    "top_k": {"fraction": 0.05},
    "random_k": {"fraction": 0.1},
    "low_rank": {"rank": 2},
    "lossless": {},
}
NONE = "random_k"
"""Has no memory."""
RULES = {
    "scaffold": {"clients": 3},
    "feddyn": {"clients": 3, "alpha": 0.1},
    "mimelite": {},
    "fednova": {},
    "qfedavg": {"q": 1.0},
}


def up(name, **more):
    return {"compression": {"up": {"name": name, **CODECS[name], **more}}}


def by(name):
    return {"strategy": {"name": name, **RULES[name]}}


KINDS = {
    "plain": {},
    **{name: up(name, error_feedback=False) for name in ("fp16", "top_k")},
    **{f"{name} with memory": up(name, error_feedback=True) for name in CODECS if name != NONE},
    NONE: up(NONE),
    **{name: by(name) for name in RULES},
    "scaffold and int8 with memory": {**by("scaffold"), **up("int8", error_feedback=True)},
    "fednova and fp16 with memory": {**by("fednova"), **up("fp16", error_feedback=True)},
    "a box": {"config": {"part": "box"}},
    "a box and int8 with memory": {"config": {"part": "box"}, **up("int8", error_feedback=True)},
    "a mask": {"config": {"part": "mask"}},
}
TRAIN = {"steps": 1, "learning_rate": 0.1}
NOISE = Policy(privacy=Protection(clip_norm=1.0, noise=1.0, otherwise="add"))


class InPlace(Client):
    """Changes the received arrays, and records the memory in use when it returns."""

    def __init__(self):
        self.held_bytes = []

    def train(self, params, task):
        for name in params:
            params[name] += np.float32(0.01 * task.round)
        if task.rule.needs_gradient:
            task.local.full_gradient = {n: np.full_like(a, 0.1) for n, a in params.items()}
        task.local.initial_loss = 1.0
        part = task.config.get("part")
        update = Update({n: self._part(a, part) for n, a in params.items()}, 1)
        self.held_bytes.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.reset_peak()
        return update

    @staticmethod
    def _part(values, part):
        if part == "mask":
            return MaskOf(values, np.indices(values.shape).sum(axis=0) % 10 > 0)
        if part == "box":
            return SliceOf(values[3:1490, 5:999], ((3, 1490), (5, 999)))
        return values


def works(tmp_path, tables, rounds, client, policy=None):
    """Yield the task runs of several rounds, as an agent makes them."""
    store, model = ClientStore(tmp_path / "client"), tmp_path / "model"
    digest = written(MODEL, model)
    run = RunSettings.of({"train": TRAIN, "evaluate": False, **tables})
    given = {digest: model}
    received = None
    if slots := run.built().rule.receives:
        beside = {f"{slot}/{n}": np.full_like(a, 0.5) for slot in slots for n, a in MODEL.items()}
        received = fleet_pb2.ModelRef(digest=written(beside, tmp_path / "beside"))
        given[received.digest] = tmp_path / "beside"
    for name, path in given.items():
        path.replace(store.model_path(name))
    reference = fleet_pb2.ModelRef(digest=digest, size_bytes=MODEL_BYTES)
    for number in range(1, rounds + 1):
        offer = run.task(
            number, "a", 1, model=reference, received=received, memory_round=number - 1
        )
        task = task_from_message(offer, "a")
        yield TaskRun(client, task, offer, "a", store, policy or Policy())


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_an_update_needs_little_memory(kind, tmp_path):
    """Also in a second round, with memory from the first."""
    check(tmp_path, KINDS[kind])


@pytest.mark.long
def test_an_update_that_the_owner_protects_needs_little_memory(tmp_path):
    """By clipping and noise."""
    check(tmp_path, {}, NOISE)


@pytest.mark.long
@pytest.mark.parametrize("codec", CODECS)
def test_a_model_from_differences_needs_little_memory(codec, tmp_path):
    """From two in sequence; the result is exactly the server's model."""
    store, written_at = ClientStore(tmp_path / "client"), tmp_path / "file"
    manifest_of = {n: TensorSpec(shape=a.shape, dtype=a.dtype) for n, a in MODEL.items()}
    manifest = Manifest(dict.fromkeys(MODEL, "F32"), manifest_of, 0)
    method, steps, model = scheme({"name": codec, **CODECS[codec]}).codec, [], MODEL
    base = written(model, written_at)
    written_at.rename(store.model_path(base))
    for seed in (1, 2):
        noise = np.random.default_rng(seed).normal(size=MODEL["w"].shape).astype(np.float32)
        made = make(model, {"w": model["w"] + noise}, manifest, method, seed)
        with written_at.open("wb") as file:
            steps.append(write_params(file, made.arrays, made.dtypes))
        written_at.rename(store.model_path(steps[-1]))
        model = made.result
    wanted = written(model, written_at)
    del made, noise, model
    tracemalloc.start()
    try:
        store.advance(base, steps, wanted)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert store.has_model(wanted)
    assert peak / MODEL_BYTES < MOST


def check(tmp_path, tables, policy=None):
    """Check the peak memory of two rounds."""
    client, most = InPlace(), MOST_ENCODED if "compression" in tables else MOST
    for work in works(tmp_path, tables, 2, client, policy):
        tracemalloc.start()
        try:
            work.run()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert (peak - client.held_bytes[-1]) / MODEL_BYTES < most
        assert client.held_bytes[-1] / MODEL_BYTES < 3.2  # a gradient or a new mask


def rests(work, scratches):
    """Bytes on the disk at the end of a task, with its scratch space."""
    ending = f"{work.task.run}.{work.task.round}."
    files = [p for p in work.store.directory.rglob("*") if p.name.startswith(ending)]
    assert {path.suffix for path in files} >= {".body", ".header"}
    return sum(p.stat().st_size for p in files) + sum(s.size_bytes for s in scratches)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_the_budget_gate_reserves_the_disk_space_of_a_task(kind, tmp_path, monkeypatch):
    """With its scratch space, and not much more."""
    scratches, make = [], ClientStore.scratch

    def scratch(store):
        scratches.append(make(store))
        return scratches[-1]

    monkeypatch.setattr(ClientStore, "scratch", scratch)
    for work in works(tmp_path, KINDS[kind], 2, InPlace()):
        scratches.clear()
        work.run()
        models = rests(work, scratches) / MODEL_BYTES
        assert models < written_models(work.message) + 0.01  # headers
        assert models > written_models(work.message) - 2.1


# ---- the same bits -------------------------------------------------------------------------------

SETTINGS = RoundSettings(epochs=None, steps=3, batch_size=8, learning_rate=0.1)
TENSORS = {
    "w": ((300, 701), np.float32),
    "half": ((70, 3), np.float16),
    "wide": ((200_001,), np.float64),
    "one": ((), np.float32),
    "none": ((0, 3), np.float32),
}
MANIFEST = Manifest(
    dtypes={n: "F64" if dtype is np.float64 else "F32" for n, (_, dtype) in TENSORS.items()},
    specs={n: TensorSpec(shape=s, dtype=np.dtype(d)) for n, (s, d) in TENSORS.items()},
    size_bytes=0,
)


def of(tensors, seed, dtype=None):
    """Random tensors by name."""
    rng = np.random.default_rng(seed)
    return {n: np.asarray(rng.normal(size=s), dtype or d) for n, (s, d) in tensors.items()}


def parts(wrap):
    """An update of whole tensors."""
    new, old = of(TENSORS, 0), of(TENSORS, 1)
    return [TensorPart(DELTA, n, Full(), new[n], wrap(old[n])) for n in new]


def wrapped(arrays, wrap):
    return {name: wrap(array) for name, array in arrays.items()}


def same(some, others):
    """Check that names and bits are equal."""
    assert list(some) == list(others)
    for name, values in some.items():
        other = np.asarray(others[name])
        assert (values.dtype, values.shape) == (other.dtype, other.shape), name
        assert np.asarray(values).tobytes() == other.tobytes(), name


@pytest.mark.parametrize("name", RULES)
def test_an_elementwise_rule_gives_the_same_bits_piece_by_piece(name, tmp_path):
    rule = RunSettings.of(by(name)).built().rule
    assert rule.elementwise

    def settled(wrap, scratch):
        local = RuleContext(
            received={slot: wrapped(of(TENSORS, 2, "f4"), wrap) for slot in rule.receives},
            memory={slot: {"w": wrap(of(TENSORS, 3)["w"])} for slot in rule.remembers},
            full_gradient=of(TENSORS, 4),
            initial_loss=0.7,
        )
        return apply_rule(rule, parts(wrap), local, SETTINGS, 24, scratch=scratch)

    whole, pieces = settled(lambda a: a, None), settled(Held, Scratch(tmp_path))
    assert whole.scalars == pieces.scalars
    for get in (
        lambda made: {(p.group, p.tensor): p.sent(np.float64) for p in made.parts},
        lambda made: {(s, n): a for s, found in made.memory.items() for n, a in found.items()},
    ):
        same(get(whole), get(pieces))


@pytest.mark.parametrize("clip_norm", [1.0, 1e9])
def test_noise_has_the_same_bits_piece_by_piece(clip_norm):
    """Clipped or not."""
    guard = Guard(clip_norm=clip_norm, noise_multiplier=1.0, seeded=True)

    def protected(wrap):
        made = guard.protect(
            RuleOutput(parts(wrap)), MANIFEST, run="r", round=2, seed=5, secret=bytes
        )
        return {part.tensor: part.values for part in made.parts}

    same(protected(lambda a: a), protected(Held))


@pytest.mark.long
@pytest.mark.parametrize("coverage", ["whole", "box", "mask"])
@pytest.mark.parametrize("codec", CODECS)
def test_a_codec_gives_the_same_bytes_piece_by_piece(codec, coverage, tmp_path):
    """And the same memory, for any coverage."""
    how = scheme({"name": codec, **CODECS[codec], "error_feedback": codec != NONE})
    shape = TENSORS["w"][0]
    manifest = Manifest({"w": "F32"}, {"w": TensorSpec(shape=shape, dtype=np.dtype("f4"))}, 0)
    new, old = of(TENSORS, 0)["w"], of(TENSORS, 1)["w"]
    new[:3] = old[:3]
    bits = np.indices(shape).sum(axis=0) % 3 > 0
    index, covered = {
        "whole": (np.s_[:], Full()),
        "box": (np.s_[2:290, 5:700], Slice(((2, 290), (5, 700)))),
        "mask": (bits, Mask(bits.reshape(-1))),
    }[coverage]

    def compressed(wrap, scratch, memory):
        part = TensorPart(DELTA, "w", covered, new[index], wrap(old[index]))
        memory = {slot: wrapped(found, wrap) for slot, found in memory.items()}
        made = compress(how, [part], manifest, 7, memory, scratch=scratch)
        described, *_ = write_body(tmp_path / "body", made.parts, manifest)
        kept = {(s, n): a for s, found in made.memory.items() for n, a in found.items()}
        return described, (tmp_path / "body").read_bytes(), kept

    for memory in ({}, {f"{ERROR}.{DELTA}": {"w": of(TENSORS, 6)["w"]}}):
        *whole, kept = compressed(lambda a: a, None, memory)
        *pieces, also_kept = compressed(Held, Scratch(tmp_path), memory)
        assert whole == pieces
        same(kept, also_kept)
