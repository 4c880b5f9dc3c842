"""Differences between models: both sides get the same bits and converge to the model."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.client.state.store import ClientStore
from fedloom.protocol.codecs import codec
from fedloom.protocol.errors import IntegrityError
from fedloom.protocol.manifest import read_manifest
from fedloom.protocol.tensors.container import narrow, read_params, widen, write_file
from fedloom.protocol.tensors.model_differences import apply, make

DTYPES = {"w": "F32", "h": "F16", "b": "BF16", "d": "F64", "n": "I64", "s": "F32", "still": "F32"}
METHODS = [
    codec("fp16"),
    codec("bf16"),
    codec("int8", {"block": 16}),
    codec("int4", {"block": 16}),
    codec("top_k", {"fraction": 0.1}),
    codec("random_k", {"fraction": 0.1, "scaled": False}),
    codec("low_rank", {"rank": 1}),
    codec("lossless"),
]


def model(seed, still=1.0):
    rng = np.random.default_rng(seed)
    return {
        "w": rng.normal(size=(9, 14)).astype(np.float32),
        "h": rng.normal(size=(6, 10)).astype(np.float16),
        "b": widen(narrow(rng.normal(size=(8, 8)).astype(np.float32), "BF16"), "BF16"),
        "d": rng.normal(size=(3,)),
        "n": np.array(seed, np.int64),
        "s": np.array(seed / 3, np.float32),
        "still": np.full((4, 4), still, np.float32),
    }


@pytest.fixture
def store(tmp_path):
    """A client's store that holds the first model."""
    return ClientStore(tmp_path / "state")


def put(store, params):
    """A model in a store, and its digest."""
    path = store.model_path("new")
    digest = write_file(path, params, DTYPES)
    path.replace(store.model_path(digest))
    return digest


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_a_client_gets_the_bits_of_the_server(store, method):
    """Through files, several at once, in every dtype; unchanged tensors are left out."""
    base = put(store, model(0))
    manifest = read_manifest(store.model_path(base))
    held = read_params(store.model_path(base))
    steps = []
    for number in range(1, 4):
        made = make(held, model(number), manifest, method, number)
        held = made.result
        path = store.model_path(f"step{number}")
        write_file(path, made.arrays, made.dtypes)
        steps.append(path.stem)
    wanted = put(store, held)
    store.model_path(wanted).unlink()
    store.advance(base, steps, wanted)
    assert store.has_model(wanted)
    got = read_params(store.model_path(wanted))
    for name, array in held.items():
        assert got[name].dtype == array.dtype
        assert np.array_equal(got[name], array)
    assert not any(store.model_path(step).exists() for step in steps)


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_later_differences_correct_the_loss_of_earlier_ones(store, method):
    """The clients' model converges to a constant model."""
    base = put(store, model(0))
    manifest = read_manifest(store.model_path(base))
    held, goal = read_params(store.model_path(base)), model(1)
    far = np.linalg.norm(goal["w"] - held["w"])
    for number in range(120):
        held = make(held, goal, manifest, method, number).result
    assert np.linalg.norm(goal["w"] - held["w"]) < 0.02 * far
    assert held["n"] == goal["n"]


def test_unchanged_tensors_are_not_sent(store):
    """A difference of equal models has only its note."""
    base = put(store, model(0))
    params = read_params(store.model_path(base))
    made = make(params, params, read_manifest(store.model_path(base)), METHODS[2], 1)
    assert set(made.arrays) == {"note"}


@settings(max_examples=80)
@given(
    note=st.sampled_from(
        [
            b"",
            b"{}",
            b"[]",
            b'{"codec": "int8", "settings": {}, "tensors": [{"name": "x"}]}',
            b'{"codec": "int8", "settings": {}, "tensors": [{"name": "w"}]}',
            b'{"codec": "int8", "settings": {}, "tensors": [{"name": "w", "arrays": ["codes"]}]}',
            b'{"codec": "x", "settings": {}, "tensors": []}',
            b'{"codec": "int8", "settings": {"block": 3}, "tensors": []}',
        ]
    )
    | st.binary(max_size=30)
)
def test_an_invalid_difference_is_an_integrity_error(note):
    """The client can then download the whole model."""
    arrays = {"note": np.frombuffer(note, np.uint8), "0": np.zeros(3), "0.codes": np.zeros(3)}
    with pytest.raises(IntegrityError):
        apply(model(0), arrays, None)


def test_a_difference_from_another_model_is_detected(store):
    """By the digest of the result."""
    base, other = put(store, model(0)), put(store, model(5))
    manifest = read_manifest(store.model_path(base))
    made = make(read_params(store.model_path(base)), model(1), manifest, METHODS[2], 1)
    write_file(store.model_path("step"), made.arrays, made.dtypes)
    wanted = put(store, made.result)
    store.model_path(wanted).unlink()
    with pytest.raises(IntegrityError, match="Expected the model"):
        store.advance(other, ["step"], wanted)
    assert not store.has_model(wanted)
    assert not store.model_path("step").exists()
