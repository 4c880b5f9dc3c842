"""Lineage of models over the API: origins, tensors, signatures."""

import json
import threading

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from fedloom.protocol.tensors.container import write_file
from fedloom.protocol.trust.signing import Verifier, to_sign
from fedloom.server.ledger import AcceptedUpdate
from fedloom.server.pki.signing_key import SigningKey
from fedloom.server.queries import lineage
from fedloom.server.storage import model_norms
from support.door import Door
from support.patience import PATIENCE_S


@pytest.fixture
def door(tmp_path):
    """A server whose run committed a round with updates of two clients."""
    with Door(tmp_path / "state") as door:
        door.run = door.submit(tmp_path)
        ledger = door.contexts.ledger
        door.first = ledger.run(door.run).model
        path = tmp_path / "second.safetensors"
        write_file(path, {"w": np.array([3, 0, 0, 4], np.float32)})
        door.second = door.put_model(path)
        row = {
            "run": door.run, "number": 1, "kind": "train", "opened_at": 0.0, "deadline_at": 1.0,
            "model_in": door.first,
        }  # fmt: skip
        ledger.open_round(row, ["ann", "bob", "cid"])
        for client in ("ann", "bob"):
            update = AcceptedUpdate(
                run=door.run, round=1, client=client, identity="i", file="", size_bytes=0,
                weight=2.0, norm=1.0, counts_in=1,
            )  # fmt: skip
            ledger.accept(update, 9)
        ledger.close_round(door.run, 1)
        result = {
            "model_out": door.second, "strategy_state": None, "counts": True, "training": {},
            "evaluation": {"num_examples": 5, "values": {"loss": 0.25}},
        }  # fmt: skip
        ledger.commit_round(door.run, 1, result, 10)
        yield door


def test_lineage_of_a_model(door):
    """An initial model has its run, and each model its evaluations."""
    made = door.ask("GET", f"/models/{door.second}/lineage")[1]
    [origin] = made["origins"]
    assert (origin["run"], origin["round"], origin["model_in"]) == (door.run, 1, door.first)
    assert [c["client"] for c in origin["contributors"]] == ["ann", "bob"]
    assert made["evaluations"] == []
    first = door.ask("GET", f"/models/{door.first}/lineage")[1]
    assert [(o["round"], o["model_in"], o["contributors"]) for o in first["origins"]] == [
        (0, None, [])
    ]
    assert [(e["round"], e["values"]) for e in first["evaluations"]] == [(1, {"loss": 0.25})]
    door.ask("POST", f"/models/{door.second}/promote", {})
    both = door.ask("GET", f"/model-comparison?of={door.first}&of={door.second[:8]}")[1]["models"]
    assert [m["digest"] for m in both] == [door.first, door.second]
    assert [len(m["promoted_at"]) for m in both] == [0, 1]


def test_norms_do_not_depend_on_the_block_size(door, monkeypatch):
    seen = door.ask("GET", f"/models/{door.second}/layers?base={door.first}")[1]
    [layer] = seen["layers"]
    assert (layer["name"], layer["shape"], layer["norm"], layer["max_abs"]) == ("w", [4], 5.0, 4.0)
    assert (layer["difference"], layer["relative"], seen["difference"]) == (5.0, 1.0, 5.0)
    monkeypatch.setattr(model_norms, "BLOCK", 3)
    door.app.state.context.inspector.forget()
    assert door.ask("GET", f"/models/{door.second}/layers?base={door.first}")[1] == seen
    alone = door.ask("GET", f"/models/{door.second}/layers")[1]
    assert (alone["norm"], alone["difference"], alone["layers"][0]["difference"]) == (5, None, None)


@pytest.mark.long
def test_page_does_not_wait_for_a_large_model(door, monkeypatch):
    """It first appears without norms and is refreshed; they are computed once."""
    go, measured = threading.Event(), []

    def slowly(*paths):
        measured.append(paths)
        assert go.wait(PATIENCE_S)
        return model_norms.layers(*paths)

    monkeypatch.setattr(lineage, "layers", slowly)
    door.app.state.context.inspector.forget()
    page = f"/models/{door.second}?base={door.first}"

    def shown():
        connection = door.connect()
        connection.request("GET", page)
        text = connection.getresponse().read().decode()
        connection.close()
        return 'id="measuring"' in text, 'aria-label="Tensors"' in text

    assert shown() == shown() == (True, False)
    live = door.contexts.live
    before = door.call(live.version_of, ["models"])
    go.set()
    layers = door.ask("GET", f"/models/{door.second}/layers?base={door.first}")[1]["layers"]
    assert len(layers) == 1
    assert door.call(live.version_of, ["models"]) > before
    assert shown() == (False, True)
    assert len(measured) == 1


def test_a_tensor_missing_in_the_base_has_no_difference(tmp_path):
    """Nor one of another shape; an empty tensor has norm 0."""
    new, old = tmp_path / "new.safetensors", tmp_path / "old.safetensors"
    write_file(new, {"a": np.ones((2, 2), np.float32), "b": np.zeros((0,), np.float32)})
    write_file(old, {"a": np.ones(4, np.float32), "b": np.zeros((0,), np.float32)})
    found = model_norms.layers(new, old)
    assert [(x.name, x.norm, x.difference) for x in found] == [("a", 2.0, None), ("b", 0.0, 0.0)]


def test_a_download_has_a_signature(door, tmp_path):
    """Over this digest and federation; a plaintext server has no key."""
    assert door.ask("GET", f"/models/{door.second}/signature")[0] == 409
    door.contexts.signing = SigningKey.ensure(tmp_path / "signing", "demo")
    signed = door.ask("GET", f"/models/{door.second}/signature")[1]
    statement = json.loads(signed["statement"])
    assert (statement["digest"], statement["federation"]) == (door.second, "demo")
    assert (statement["run"], statement["round"]) == (door.run, 1)
    trusted = Verifier([bytes.fromhex(signed["key"])])
    trusted.check("model", signed["statement"].encode(), bytes.fromhex(signed["message"]))
    key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(signed["key"]))
    key.verify(bytes.fromhex(signed["signature"]), to_sign("model", signed["statement"].encode()))
