"""Tasks have the same meaning on both sides of the wire."""

import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloom.protocol.errors import UsageError
from fedloom.protocol.task_description import (
    WEIGHTINGS,
    DevicePrivacy,
    DifferenceRef,
    FileRef,
    TaskDescription,
    TaskMasking,
    UpdateBounds,
    task_seed,
)
from fedloom.protocol.task_kind import Kind
from fedloom.protocol.task_message import for_client, from_message, offered, to_message
from fedloom.protocol.updates.compression import scheme
from fedloom.protocol.v1 import fleet_pb2
from fedloom.strategies import FedProx, Personal, Plain, RoundSettings, strategy
from support import parts

OWN_RULES = [strategy(name, s.get("strategy")).rule for name, s in parts.STRATEGIES.items()]
numbers = st.floats(0, 1e6, exclude_min=True)
counts = st.integers(0, 2**31 - 1)
files = st.builds(
    FileRef, digest=st.text("0123456789abcdef", min_size=64, max_size=64), size_bytes=counts
)
settings = st.builds(
    RoundSettings,
    epochs=st.none(),
    steps=st.integers(1, 10**6),
    batch_size=counts,
    learning_rate=numbers,
    clip_norm=st.none() | numbers,
    only=st.lists(st.text(min_size=1)).map(tuple),
    tensor_share=st.floats(0.01, 1),
    patience=st.none() | st.integers(1, 100),
    time_budget_s=st.none() | numbers,
) | st.builds(
    RoundSettings,
    epochs=st.integers(1, 10**6),
    steps=st.none(),
    batch_size=counts,
    learning_rate=numbers,
)
tasks = st.builds(
    TaskDescription,
    run=st.text(min_size=1),
    round=st.integers(1, 2**31),
    kind=st.sampled_from(Kind),
    model=st.none() | files,
    differences=st.lists(
        st.builds(DifferenceRef, base=st.text(min_size=1), file=files), max_size=2
    ).map(tuple),
    settings=settings,
    rule=st.sampled_from([Plain(), FedProx(mu=0.5), *OWN_RULES]),
    evaluate=st.booleans(),
    weighting=st.sampled_from(WEIGHTINGS),
    bounds=st.none()
    | st.builds(UpdateBounds, max_abs=numbers, max_weight=numbers, max_bytes=counts),
    config=st.dictionaries(
        st.text(),
        st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(),
    ),
    deadline_s=numbers,
    seed=st.integers(0, 2**63 - 1),
    received=st.none() | files,
    memory_round=counts,
    scheme=st.sampled_from(
        [
            None,
            scheme({"name": "int8"}),
            scheme({"name": "top_k", "fraction": 0.1}),
            scheme({"name": "fp16", "error_feedback": True}),
        ]
    ),
    personal=st.sampled_from(
        [
            Personal(),
            Personal(keep=("head.*",), head_epochs=2),
            Personal(name="apfl", mix=0.25, mix_learning_rate=0.5),
            Personal(name="ditto", pull=2.0),
        ]
    ),
    privacy=st.none()
    | st.builds(
        DevicePrivacy,
        clip=numbers,
        count_within=st.booleans(),
        noise_multiplier=numbers,
        seeded=st.booleans(),
    ),
    run_name=st.text(),
    training_round=counts,
    masking=st.none()
    | st.builds(
        TaskMasking,
        attempt=st.integers(1, 3),
        sum_bits=st.sampled_from([16, 24, 32, 64]),
        exponent=st.integers(-40, 60),
        group=st.integers(3, 128),
        run_seed=st.integers(-(2**63), 2**63 - 1),
        metrics=st.dictionaries(st.text(), numbers),
        max_examples=counts,
        session_s=numbers,
        site=st.text(),
    ),
)


@pytest.mark.long
@given(tasks)
def test_a_task_survives_a_round_trip(task):
    """Through the bytes of the wire, with each type of value; noise of a masked task is shared."""
    if task.privacy is not None:
        privacy = replace(task.privacy, in_session=task.masking is not None)
        task = replace(task, privacy=privacy)
    message = fleet_pb2.Task.FromString(to_message(task).SerializeToString())
    found = from_message(message)
    assert found == task
    assert {n: type(v) for n, v in found.config.items()} == {
        n: type(v) for n, v in task.config.items()
    }
    assert to_message(found) == message


TASK = TaskDescription(
    run="r",
    round=3,
    model=FileRef(digest="m"),
    received=FileRef(digest="s"),
    differences=(DifferenceRef(base="b", file=FileRef(digest="d")),),
    settings=RoundSettings(epochs=1, steps=None, batch_size=8, learning_rate=0.1),
    rule=Plain(),
)


@pytest.mark.parametrize(
    "changed",
    [
        {"kind": fleet_pb2.TASK_KIND_UNSPECIFIED},
        {"weighting": fleet_pb2.WEIGHTING_UNSPECIFIED},
        {"rule": fleet_pb2.ClientRule(name="none of these")},
        {"rule": fleet_pb2.ClientRule(name="fedprox", settings={"nu": 1.0})},
        {"compression": fleet_pb2.Compression(codec="int9")},
        {"personal": fleet_pb2.Personal(name="pfedme")},
    ],
)
def test_a_task_from_a_newer_server_is_refused(changed):
    message = to_message(TASK)
    message.MergeFrom(fleet_pb2.Task(**changed))
    for name, value in changed.items():
        if not value:
            message.ClearField(name)
    with pytest.raises(UsageError, match="a task that this version knows"):
        from_message(message)


@pytest.mark.parametrize(
    ("changed", "limit"),
    [
        ({"train": fleet_pb2.TrainSettings(only=["*"] * 20_000)}, "256 entries in only"),
        ({"train": fleet_pb2.TrainSettings(widths=[0.5] * 257)}, "256 entries in widths"),
        ({"personal": fleet_pb2.Personal(keep=["x*"] * 257)}, "256 entries in keep"),
        ({"config": {str(i): fleet_pb2.Scalar() for i in range(257)}}, "256 values in config"),
        ({"config": {"x" * 257: fleet_pb2.Scalar()}}, "256 characters in config"),
        ({"config": {"x": fleet_pb2.Scalar(string_value="y" * 65_537)}}, "in config.x, got 65537"),
    ],
)
def test_a_task_beyond_a_limit_is_refused(changed, limit):
    """Before a device compares thousands of patterns with thousands of names."""
    message = to_message(TASK)
    message.MergeFrom(fleet_pb2.Task(**changed))
    with pytest.raises(UsageError, match=limit):
        from_message(message)


def test_values_that_differ_between_clients_are_set_on_a_copy():
    """The seed follows from the run's seed, the round and the client."""
    common = to_message(TASK)
    task = for_client(common, "ann", 7, 2)
    assert (task.seed, task.memory_round) == (task_seed(7, 3, "ann"), 2)
    assert for_client(common, "bob", 7, None).memory_round == 0
    assert common.seed == 0
    assert task_seed(7, 3, "ann") != task_seed(7, 3, "bob")


def test_the_seed_of_a_masked_task_follows_from_what_all_members_know():
    """A device can check its own: the run's seed is in the task."""
    masking = TaskMasking(
        sum_bits=32, exponent=20, group=8, run_seed=7, max_examples=9, session_s=1
    )
    task = for_client(to_message(replace(TASK, masking=masking)), "ann", 7, None)
    assert task.seed == task_seed(task.masking.run_seed, task.key.round, "ann")


def test_a_task_names_the_files_that_its_client_may_download():
    """The model, the file beside it, and the differences; never the bases."""
    message = to_message(TASK)
    assert offered(message) == {"m": 0, "s": 0, "d": 0}


def test_the_description_of_a_task_loads_no_protobuf():
    code = (
        "import fedloom.protocol.task_description, sys; "
        "assert not [m for m in sys.modules if m.startswith(('google', 'grpc'))]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
