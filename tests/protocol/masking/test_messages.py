"""Messages of masking sessions as bytes, the core of a task, and the cost of importing them."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloom.protocol import masking
from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.masking import encoding
from fedloom.protocol.v1 import fleet_pb2
from support.mask_members import Session


@pytest.fixture(scope="module")
def session():
    return Session(4).share()


def test_messages_read_as_they_were_written(session):
    survivors = masking.Survivors(shared=session.everyone, masked=frozenset({0, 1, 2}))
    reveal = masking.RevealMessage({0: bytes(32), 3: bytes([7]) * 32})
    raw = reveal.to_bytes(survivors)
    assert masking.RevealMessage.from_bytes(raw, survivors) == reveal
    assert len(raw) == 33 * 4
    for i, (advert, dealt) in enumerate(zip(session.adverts, session.dealt, strict=True)):
        assert masking.Advert.from_bytes(advert.to_bytes()) == advert
        assert masking.SharesMessage.from_bytes(dealt.to_bytes(), i, 4) == dealt
        for share in dealt.shares:
            assert masking.SealedShare.from_bytes(share.to_bytes()) == share


@given(st.binary(max_size=300))
def test_other_bytes_are_refused(raw):
    """With a code, never another exception."""
    survivors = masking.Survivors(shared=frozenset(range(4)), masked=frozenset(range(3)))
    for read in (
        masking.Advert.from_bytes,
        masking.SealedShare.from_bytes,
        lambda raw: masking.SharesMessage.from_bytes(raw, 0, 4),
        lambda raw: masking.RevealMessage.from_bytes(raw, survivors),
        lambda raw: masking.from_bitmap(raw, 4),
    ):
        try:
            read(raw)
        except Refusal as error:
            assert error.code == Code.MALFORMED  # noqa: PT017 - some bytes are messages


@given(st.data())
def test_changed_adverts_are_refused_or_differ(data):
    """No two byte strings are the same advert."""
    advert = Session(1).adverts[0] if not ADVERT else ADVERT[0]
    ADVERT[:] = [advert]
    raw = bytearray(advert.to_bytes())
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        assert masking.Advert.from_bytes(bytes(raw)) != advert
    except Refusal as error:
        assert error.code == Code.MALFORMED  # noqa: PT017 - likewise


ADVERT = []


@pytest.mark.parametrize(
    "changed",
    [
        {"name": ""},
        {"name": "é"},
        {"name": "x" * 65},
        {"serial": "1"},
        {"coverage": "x" * 65},
        {"pair_key": bytes(31)},
        {"nonce": b""},
        {"signature": bytes(73)},
        {"chain": bytes(16 * 1024 + 1)},
    ],
)
def test_fields_of_an_advert_have_limits(session, changed):
    with pytest.raises(Refusal, match="Expected"):
        replace(session.adverts[0], **changed)


def test_a_reveal_of_the_wrong_kind_is_refused():
    """S of a survivor, or a number that is no element of the field."""
    survivors = masking.Survivors(shared=frozenset({0, 1}), masked=frozenset({0, 1}))
    good = b"b" + bytes(32)
    for bad in (b"s" + bytes(32), b"b" + bytes([255]) * 32, b"\0" + bytes(31) + b"\1"):
        with pytest.raises(Refusal, match="member 1"):
            masking.RevealMessage.from_bytes(good + bad, survivors)


@given(st.integers(1, 128).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1)))))
def test_bitmaps_are_sets(case):
    size, members = case
    raw = masking.to_bitmap(members, size)
    assert masking.from_bitmap(raw, size) == members
    with pytest.raises(Refusal):
        masking.from_bitmap(raw + b"\0", size)
    if size % 8:
        with pytest.raises(Refusal):
            masking.from_bitmap(raw[:-1] + bytes([raw[-1] | 128]), size)


def test_fields_have_one_form_each():
    """Lengths keep neighbours apart; integers of both signs have eight bytes."""
    assert encoding.digest("x", "ab", "c") != encoding.digest("x", "a", "bc")
    assert encoding.digest("x") != encoding.digest("x", "")
    assert encoding.field_bytes(2**64 - 1) == encoding.field_bytes(-1) == bytes([255]) * 8
    with pytest.raises(ValueError, match="64 bits"):
        encoding.field_bytes(2**64)


# ---- the core of a task --------------------------------------------------------------------------

TERMS = {"sum_bits": 32, "exponent": 20, "group": 64, "run_seed": 5, "metrics": {"loss": 1.0}}


def core(task, **changed):
    return masking.task_core(task, **(TERMS | changed))


def every_task():
    """A task for each field of `Task`, with a value there; messages once empty, once filled."""
    made = {}
    for field in fleet_pb2.Task.DESCRIPTOR.fields:
        task = fleet_pb2.Task()
        target = getattr(task, field.name)
        if field.message_type is None:
            setattr(task, field.name, "x" if field.cpp_type == field.CPPTYPE_STRING else 1)
        elif hasattr(target, "add"):
            target.add()
        elif hasattr(target, "SetInParent"):
            target.SetInParent()
        else:
            target["x"].int_value = 1
        made[field.name] = task
    return made


def test_every_field_of_a_task_is_covered():
    """But those that are known to differ between clients; a new field is covered by itself."""
    empty = core(fleet_pb2.Task())
    same = {name for name, task in every_task().items() if core(task) == empty}
    assert same == {"deadline_s", "seed", "memory_round", "differences"}
    cores = [core(task) for name, task in every_task().items() if name not in same]
    assert len(set(cores)) == len(cores)


@pytest.mark.parametrize(
    "change",
    [
        lambda task: setattr(task.train, "learning_rate", 0.0),
        lambda task: setattr(task.train, "learning_rate", 0.1 + 1e-17 + 1e-16),
        lambda task: task.train.ClearField("epochs"),
        lambda task: setattr(task.train, "steps", 2),
        lambda task: task.train.only.append("x"),
        lambda task: setattr(task.limits, "max_abs", 2.0),
        lambda task: setattr(task.received, "digest", "cd"),
        lambda task: task.config["a"].SetInParent(),
        lambda task: setattr(task.config["a"], "bool_value", False),
        lambda task: setattr(task.config["a"], "int_value", 0),
        lambda task: setattr(task.config["a"], "double_value", 0.0),
        lambda task: setattr(task.config["a"], "double_value", -0.0),
        lambda task: setattr(task.config["a"], "string_value", ""),
        lambda task: setattr(task.key, "round", 4),
        lambda task: setattr(task.masking, "site", "north"),
    ],
)
def test_settings_that_differ_change_the_core(change):
    """Zeros of different types too: client code can tell them apart."""
    task = fleet_pb2.Task(
        key=fleet_pb2.TaskKey(run="r", round=3),
        train=fleet_pb2.TrainSettings(epochs=2, learning_rate=0.1),
    )
    other = fleet_pb2.Task()
    other.CopyFrom(task)
    change(other)
    assert core(other) != core(task)


def test_zeros_of_different_types_differ():
    cores = set()
    for kind in ("bool_value", "int_value", "double_value"):
        task = fleet_pb2.Task()
        setattr(task.config["a"], kind, 0)
        cores.add(core(task))
    assert len(cores) == 3


@pytest.mark.parametrize(
    "changed",
    [{"sum_bits": 24}, {"exponent": -20}, {"group": 63}, {"run_seed": 6}, {"metrics": {}}],
)
def test_terms_of_the_sum_change_the_core(changed):
    assert core(fleet_pb2.Task(), **changed) != core(fleet_pb2.Task())


def test_both_ends_have_the_terms_of_a_task():
    """What a device received, with its own seed, and what the server has for all."""
    common = fleet_pb2.Task(
        key=fleet_pb2.TaskKey(run="r", round=4),
        masking=fleet_pb2.Masking(attempt=2, sum_bits=24, exponent=-3, group=64, run_seed=-(2**63)),
    )
    received = fleet_pb2.Task()
    received.CopyFrom(common)
    received.seed, received.deadline_s = 5, 3.0
    terms = masking.terms_of(received, "hospitals")
    assert terms == masking.terms_of(common, "hospitals")
    assert (terms.run, terms.round, terms.attempt, terms.group) == ("r", 4, 2, 64)
    assert masking.terms_of(common, "other").pid != terms.pid
    common.masking.group = 63
    assert masking.terms_of(common, "hospitals").pid != terms.pid


@pytest.mark.parametrize("wrong", [{"attempt": 4}, {"attempt": 0}, {"group": 2}, {"group": 129}])
def test_terms_out_of_range_are_refused(wrong):
    asked = fleet_pb2.Masking(**{"attempt": 1, "group": 64} | wrong)
    with pytest.raises(Refusal, match=f"{next(iter(wrong))}") as refused:
        masking.terms_of(fleet_pb2.Task(masking=asked), "hospitals")
    assert refused.value.code is Code.MASKING_REFUSED


def test_a_task_with_an_unknown_field_is_declined():
    """At any depth: a later version's field could tell members apart."""
    nested = fleet_pb2.Task(train=fleet_pb2.TrainSettings.FromString(b"\xf8\x01\x01"))
    for task in (fleet_pb2.Task.FromString(b"\xf8\x7f\x01"), nested):
        with pytest.raises(Refusal, match="unknown fields"):
            core(task)


# ---- imports -------------------------------------------------------------------------------------


def test_the_package_loads_little():
    """Nothing before a name is used; then neither gRPC nor protobuf, nor the client's rooms."""
    program = """
import json, sys
import fedloom.protocol.masking as masking
first = [name for name in sys.modules if name.startswith(("cryptography", "numpy"))]
masking.Member, masking.recover
print(json.dumps([first, sorted(sys.modules)]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    first, loaded = json.loads(done.stdout)
    assert not first
    roots = {name.split(".")[0] for name in loaded}
    assert not roots & {"grpc", "google", "sqlalchemy", "torch", "asyncio"}
    rooms = {".".join(name.split(".")[:2]) for name in loaded if name.startswith("fedloom.")}
    assert rooms == {"fedloom.protocol", "fedloom.strategies"}
