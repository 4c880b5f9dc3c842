"""A partial download survives interruptions, and reuses only files that are not mapped."""

import hashlib
import os

import numpy as np
import pytest

from fedloom.client.state import store as store_module
from fedloom.client.state.partial_download import PartialDownload
from fedloom.client.state.store import KEEP_MODELS, ClientStore
from fedloom.protocol.errors import IntegrityError
from fedloom.protocol.tensors.container import read_params, write_file
from fedloom.protocol.v1 import fleet_pb2

BODY = bytes(range(256)) * 40


def receive(store, body):
    digest = hashlib.sha256(body).hexdigest()
    part = store.receive_model(digest, len(body))
    part.append(body[part.received :])
    part.close()
    return digest, store.adopt_model(digest)


def test_an_interrupted_download_resumes(tmp_path):
    """With the received bytes and their hash."""
    part = PartialDownload(tmp_path / "part", len(BODY))
    part.append(BODY[:1000])
    part.append(BODY[1000:1500])
    part.close()
    again = PartialDownload(tmp_path / "part", len(BODY))
    assert again.received == 1500
    assert not again.is_whole
    assert again.hash().digest() == hashlib.sha256(BODY[:1500]).digest()
    again.append(BODY[1500:])
    assert again.is_whole
    again.close()
    assert (tmp_path / "part").read_bytes() == BODY


@pytest.mark.parametrize("content", [b"", b"x", bytes(len(BODY)), b"\xff" * (len(BODY) + 8)])
def test_an_invalid_partial_file_is_started_again(tmp_path, content):
    """A file of another length, or with an impossible count."""
    (tmp_path / "part").write_bytes(content)
    part = PartialDownload(tmp_path / "part", len(BODY))
    assert part.received == 0
    part.append(BODY)
    part.close()
    assert (tmp_path / "part").read_bytes() == BODY


@pytest.mark.parametrize("length", [0, 100, len(BODY), 2 * len(BODY)])
def test_a_reused_file_contains_only_the_new_model(tmp_path, length):
    """For any length of the old file, which is renamed."""
    old = tmp_path / "old"
    old.write_bytes(b"\xaa" * length)
    inode = old.stat().st_ino
    part = PartialDownload(tmp_path / "part", len(BODY), old)
    assert part.received == 0
    assert not old.exists()
    part.append(BODY)
    part.close()
    assert (tmp_path / "part").read_bytes() == BODY
    assert (tmp_path / "part").stat().st_ino == inode


def test_the_store_keeps_the_newest_models_and_reuses_the_oldest_file(tmp_path):
    store = ClientStore(tmp_path / "state")
    inodes, digests = [], []
    for number in range(KEEP_MODELS + 3):
        digest, path = receive(store, bytes([number]) * 5000)
        os.utime(path, ns=(number, number))
        inodes.append(path.stat().st_ino)
        digests.append(digest)
    assert [store.has_model(digest) for digest in digests[-KEEP_MODELS:]] == [True] * KEEP_MODELS
    assert not any(store.has_model(digest) for digest in digests[:-KEEP_MODELS])
    assert inodes[KEEP_MODELS:] == inodes[:-KEEP_MODELS]


@pytest.mark.parametrize(("read_up_to", "writable"), [(1000, False), (1 << 20, True)])
def test_arrays_of_a_dropped_model_keep_their_values(tmp_path, monkeypatch, read_up_to, writable):
    """The file of a large model may be mapped and is not reused; small models are copied."""
    monkeypatch.setattr(store_module, "READ_UP_TO_BYTES", read_up_to)
    store = ClientStore(tmp_path / "state")
    write_file(tmp_path / "model", {"w": np.arange(1000.0)})
    _, path = receive(store, (tmp_path / "model").read_bytes())
    os.utime(path, ns=(0, 0))
    held = read_params(path, writable=writable)["w"]
    for number in range(KEEP_MODELS + 1):
        receive(store, bytes([number]) * 9000)
    assert not path.exists()
    assert held.tolist() == list(range(1000))


def test_a_model_in_use_is_not_the_oldest(tmp_path):
    """`has_model` marks it as used; the other model is replaced."""
    store = ClientStore(tmp_path)
    used, _ = receive(store, BODY)
    other, _ = receive(store, BODY + b"x")
    assert store.has_model(used)
    receive(store, BODY + b"y")
    assert (store.has_model(used), store.has_model(other)) == (True, False)


@pytest.mark.parametrize("received", [0, 1500, len(BODY)])
def test_a_model_that_came_with_its_offer_replaces_a_download_of_it(tmp_path, received):
    """Whatever an interrupted download has left, also bytes that are not the model's."""
    store = ClientStore(tmp_path)
    model = fleet_pb2.ModelRef(digest=hashlib.sha256(BODY).hexdigest(), size_bytes=len(BODY))
    part = store.receive_model(model.digest, len(BODY))
    part.append(bytes(received))
    os.close(part._handle)  # as a kill leaves it
    store.keep_model(model, BODY)
    assert store.model_path(model.digest).read_bytes() == BODY
    assert [path.name for path in (tmp_path / "models").iterdir()] == [
        f"{model.digest}.safetensors"
    ]


@pytest.mark.parametrize(
    ("content", "size_bytes"),
    [(BODY[:-1], len(BODY)), (BODY + b"x", len(BODY)), (BODY[::-1], len(BODY)), (BODY, 7)],
    ids=["shorter", "longer", "other bytes", "another size in the offer"],
)
def test_other_bytes_than_the_offered_model_are_not_kept(tmp_path, content, size_bytes):
    store = ClientStore(tmp_path)
    model = fleet_pb2.ModelRef(digest=hashlib.sha256(BODY).hexdigest(), size_bytes=size_bytes)
    with pytest.raises(IntegrityError, match="got other bytes"):
        store.keep_model(model, content)
    assert not store.has_model(model.digest)
    assert list((tmp_path / "models").iterdir()) == []
