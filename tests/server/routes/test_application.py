"""The HTTP API over the real socket."""

import asyncio
import hashlib
import json
import logging
import time

import pytest

from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.trust.tokens import parse_token, secret_matches
from fedloom.server.actions import tokens as token_actions
from fedloom.server.fleet.sessions import Call, Session
from fedloom.server.routes import models as model_routes
from support.door import SPEC, Door, write_model
from support.patience import PATIENCE_S

UNKNOWN = "0" * 64


@pytest.fixture
def door(tmp_path):
    """A server with its authority."""
    with Door(tmp_path / "state") as door:
        yield door


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    """A server without runs, for tests that make none."""
    with Door(tmp_path_factory.mktemp("empty") / "state") as door:
        yield door


def _enrol(door, client, serial="01"):
    ledger = door.contexts.ledger
    ledger.add_token(serial, "hash", client, 4e9)
    ledger.enrol(serial, serial, 4e9)


def _fault(answer, status, kind):
    got, document = answer
    assert (got, document["error"]["kind"]) == (status, kind), document
    return document["error"]["message"]


# ---- the server, tokens and clients --------------------------------------------------------------


def test_server_view(door):
    """Tokens pin the root's fingerprint; the addresses are the bound ones."""
    status, server = door.ask("GET", "/server")
    assert status == 200
    assert server["federation"] == "demo"
    assert server["root_sha256"] == door.authority.root_pin.hex()
    assert server["enrolment"] == "127.0.0.1:1"
    assert server["fleet"] == door.contexts.config.fleet
    assert (server["clients_online"], server["runs_active"], server["tls"]) == (0, 0, True)


def test_token_text_is_shown_once_and_stored_as_a_hash(door):
    status, issued = door.ask("POST", "/tokens", {"client": "ward-3", "ttl_s": 60})
    assert status == 201
    token = parse_token(issued["token"])
    assert token.pin == door.authority.root_pin
    assert secret_matches(token.secret, door.contexts.ledger.token(token.id).secret_hash)
    _, listed = door.ask("GET", "/tokens")
    [row] = listed["tokens"]
    assert (row["id"], row["client"], row["status"]) == (token.id, "ward-3", "unused")
    assert issued["token"].split(".")[2] not in json.dumps(listed)


@pytest.mark.long
def test_token_without_a_name_gets_a_free_one(door, monkeypatch):
    """Not a client's name, nor that of an earlier token."""
    _enrol(door, "calm-heron-1")
    drawn = iter(["calm-heron-1", "calm-heron-2", "calm-heron-2", "calm-heron-3"])
    monkeypatch.setattr(token_actions, "draw_name", lambda: next(drawn))
    names = [door.ask("POST", "/tokens", {})[1]["client"] for _ in range(2)]
    assert names == ["calm-heron-2", "calm-heron-3"]


def test_repeated_token_id_is_drawn_again(door, monkeypatch):
    first = door.ask("POST", "/tokens", {"client": "a"})[1]
    made = iter([parse_token(first["token"]), token_actions.tokens.make_token(b"p" * 32)])
    monkeypatch.setattr(token_actions.tokens, "make_token", lambda _pin: next(made))
    second = door.ask("POST", "/tokens", {"client": "b"})[1]
    assert second["id"] != first["id"]
    assert door.contexts.ledger.token(first["id"]).client == "a"


@pytest.mark.parametrize(
    "wish",
    [
        {"client": "a b"},
        {"client": "../x"},
        {"ttl_s": 0},
        {"ttl_s": 1e12},
        {"ttl": 3},
        {"ttl_s": "x"},
    ],
)
def test_invalid_token_requests_are_refused(door, wish):
    """An invalid name or time, or an unknown field."""
    _fault(door.ask("POST", "/tokens", wish), 422, "usage")
    assert door.ask("GET", "/tokens")[1]["tokens"] == []


def test_plaintext_server_makes_no_tokens(tmp_path):
    with Door(tmp_path / "state", plaintext=True) as door:
        message = _fault(door.ask("POST", "/tokens", {}), 409, "conflict")
        assert "--plaintext-loopback" in message
        assert door.ask("GET", "/server")[1]["root_sha256"] is None


def test_token_status(door):
    """A used token stays used after its expiry."""
    _enrol(door, "ward-1", "01")
    door.contexts.ledger.add_token("02", "hash", "ward-2", 1.0)
    _, listed = door.ask("GET", "/tokens")
    assert {t["id"]: t["status"] for t in listed["tokens"]} == {"01": "used", "02": "expired"}


def test_revoking_ends_the_connection_at_once(door):
    """The client gets the reason; its certificate is invalid."""
    _enrol(door, "ward-3")
    stream = door.call(_attend, door.contexts.fleet, "ward-3")
    assert door.ask("GET", "/clients")[1]["clients"][0]["online"] is True
    status, client = door.ask("POST", "/clients/ward-3/revoke")
    assert (status, client["status"]) == (200, "revoked")
    assert stream.refusal.code is Code.REVOKED
    door.call(lambda: None)  # the cancelled stream's turn
    assert stream.handler.cancelled()
    with pytest.raises(Refusal) as refused:
        door.contexts.ledger.check_certificate("01", "ward-3")
    assert refused.value.code is Code.REVOKED


def _attend(fleet, client):
    async def stream():
        with fleet.calling(call):
            await asyncio.Event().wait()

    call = Call(client, None, asyncio.ensure_future(stream()))
    fleet.attend(Session(call, lambda _message: None))
    return call


def test_revoking_an_unknown_client_is_not_found(door):
    assert "ward-9" in _fault(door.ask("POST", "/clients/ward-9/revoke"), 404, "not_found")


# ---- models --------------------------------------------------------------------------------------


def test_model_round_trip(door, tmp_path):
    """The digest is the file's SHA-256; a prefix identifies it; a repeat changes nothing."""
    data = write_model(tmp_path / "m.safetensors").read_bytes()
    status, stored = door.ask("PUT", "/models", body=data)
    assert status == 201
    assert stored["digest"] == hashlib.sha256(data).hexdigest()
    assert (stored["num_tensors"], stored["num_values"]) == (1, 4)
    assert door.ask("PUT", "/models", body=data) == (201, stored)
    assert _download(door, stored["digest"][:8]) == (data, f'"{stored["digest"]}"')
    assert door.temporaries() == []


def _download(door, reference):
    connection = door.connect()
    try:
        connection.request("GET", f"/v1/models/{reference}")
        response = connection.getresponse()
        assert response.status == 200
        return response.read(), response.getheader("ETag")
    finally:
        connection.close()


def test_model_is_written_in_blocks(door, tmp_path, monkeypatch):
    """No write is much larger than a block, so no body is in memory as a whole."""
    written = []
    write = model_routes._write_all
    monkeypatch.setattr(
        model_routes, "_write_all", lambda f, data: (written.append(len(data)), write(f, data))
    )
    path = write_model(tmp_path / "m.safetensors", size=6 << 20)
    door.put_model(path)
    assert sum(written) == path.stat().st_size
    assert max(written) < model_routes.BLOCK_BYTES + (1 << 20)


@pytest.mark.long
@pytest.mark.parametrize("declared", [True, False])
def test_model_over_the_limit_is_refused(tmp_path, declared):
    """By its declared length before it is sent, or as soon as it is exceeded."""
    with Door(tmp_path / "state", max_model_bytes=1000) as door:
        data = write_model(tmp_path / "m.safetensors", size=1000).read_bytes()
        body = data if declared else iter([data])
        message = _fault(door.ask("PUT", "/models", body=body), 413, "usage")
        assert "max_model_bytes" in message
        assert list((door.directory / "models").iterdir()) == []


@pytest.mark.parametrize("data", [b"", b"not a model at all", b"\xff" * 64])
def test_invalid_model_is_refused(door, data):
    """It leaves no file, and the message does not show the path."""
    message = _fault(door.ask("PUT", "/models", body=data), 422, "integrity")
    assert str(door.directory) not in message
    assert list((door.directory / "models").iterdir()) == []


@pytest.mark.long
def test_interrupted_upload_leaves_nothing(door, tmp_path):
    data = write_model(tmp_path / "m.safetensors", size=1 << 16).read_bytes()
    connection = door.connect()
    connection.putrequest("PUT", "/v1/models")
    connection.putheader("Content-Length", str(len(data)))
    connection.endheaders(data[: len(data) // 2])
    assert _until(door, door.temporaries)
    connection.close()
    assert _until(door, lambda: not door.temporaries())
    assert list((door.directory / "models").iterdir()) == []


def _until(door, holds):
    """Repeat a request until a condition holds."""
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end
        assert door.ask("GET", "/server")
    return True


@pytest.mark.long
@pytest.mark.parametrize("reference", ["abc", "zzzz", "..%2F..%2Fpki%2Froot", "*" * 8, "0" * 65])
def test_only_digests_name_models(door, reference):
    """No reference leaves the store's folder."""
    got, _ = door.ask("GET", f"/models/{reference}")
    assert got in (404, 422)


def test_ambiguous_digest_prefix_is_refused(door):
    """The message lists the models."""
    for digit in "12":
        write_model(door.contexts.models.path("beef" + digit * 60))
    assert "beef111" in _fault(door.ask("GET", "/models/beef"), 422, "usage")
    _fault(door.ask("GET", f"/models/{UNKNOWN}"), 404, "not_found")


# ---- runs ----------------------------------------------------------------------------------------


def test_run_is_submitted_watched_and_steered(door, tmp_path):
    """Its first round waits for clients; then pause, resume and stop."""
    run = door.submit(tmp_path)
    assert run.startswith("digits-")
    status, found = door.ask("GET", f"/runs/{run}")
    assert (status, found["state"], found["rounds_total"]) == (200, "running", 10)
    assert found["spec"]["cohort"] == {"goal": 2}
    assert found["live"]["round"]["state"] == "selecting"
    assert door.ask("POST", f"/runs/{run}/pause")[1]["state"] == "paused"
    assert door.ask("POST", f"/runs/{run}/resume")[1]["state"] == "running"
    assert door.ask("POST", f"/runs/{run}/stop")[1]["state"] == "stopped"
    _, found = door.ask("GET", f"/runs/{run}")
    assert found["live"] is None
    assert found["ended_at"] >= found["created_at"]


def test_run_and_its_first_model_are_listed(door, tmp_path):
    """The initial model is that of round 0."""
    run = door.submit(tmp_path)
    _, listed = door.ask("GET", "/runs")
    assert [r["id"] for r in listed["runs"]] == [run]
    _, models = door.ask("GET", f"/models?run={run[:8]}")
    [model] = models["models"]
    assert (model["run"], model["round"]) == (run, 0)
    assert model["digest"] == listed["runs"][0]["model"]
    assert door.ask("GET", "/server")[1]["runs_active"] == 1


def test_run_is_found_by_a_unique_prefix(door, tmp_path):
    """An ambiguous one is refused."""
    first, second = door.submit(tmp_path, name="a"), door.submit(tmp_path, name="ab")
    assert door.ask("GET", "/runs/ab")[1]["id"] == second
    message = _fault(door.ask("POST", "/runs/a/stop"), 422, "usage")
    assert first in message
    assert second in message
    _fault(door.ask("GET", "/runs/nothing"), 404, "not_found")


def test_impossible_action_is_a_conflict(door, tmp_path):
    """A run that waits for clients has no round to close."""
    run = door.submit(tmp_path)
    _fault(door.ask("POST", f"/runs/{run}/close"), 409, "conflict")


def test_ended_run_cannot_be_steered(door, tmp_path):
    """The answer has its state."""
    run = door.submit(tmp_path)
    door.ask("POST", f"/runs/{run}/stop")
    assert "stopped" in _fault(door.ask("POST", f"/runs/{run}/pause"), 409, "conflict")


@pytest.mark.long
@pytest.mark.parametrize("arguments", [None, {}, {"seconds": 0}, {"seconds": -1}, {"minutes": 1}])
def test_extending_needs_seconds(door, tmp_path, arguments):
    run = door.submit(tmp_path)
    _fault(door.ask("POST", f"/runs/{run}/extend", arguments), 422, "usage")


def test_aborted_round_keeps_the_reason(door, tmp_path):
    run = door.submit(tmp_path)
    status, _ = door.ask("POST", f"/runs/{run}/abort", {"reason": "mislabelled"})
    assert status == 200
    assert door.ask("GET", f"/runs/{run}")[1]["live"]["round"]["number"] == 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rouns": 3}, "rouns"),
        ({"rounds": 0}, "rounds"),
        ({"train": {"epochs": 1}}, "train.learning_rate"),
        ({"train": {"lr": 1}}, "lr"),
        ({"cohort": {}}, "cohort.goal"),
        ({"strategy": {"name": "fedavq"}}, "fedavg"),
        ({"name": "../x"}, "name"),
    ],
)
def test_invalid_specification_is_refused(empty, tmp_path, change, said):
    """Before the run exists, naming the setting."""
    digest = empty.put_model(write_model(tmp_path / "m.safetensors"))
    answer = empty.ask("POST", "/runs", {"spec": SPEC | change, "model": digest})
    message = _fault(answer, 422, "usage")
    assert said in message
    assert "__init__" not in message
    assert empty.ask("GET", "/runs")[1]["runs"] == []


@pytest.mark.long
@pytest.mark.parametrize(("model", "status"), [(UNKNOWN, 404), ("../../etc", 422), ("", 422)])
def test_run_needs_a_stored_model(door, model, status):
    """The digest is checked before a path is made from it."""
    got, _ = door.ask("POST", "/runs", {"spec": SPEC, "model": model})
    assert got == status


def test_refusals_of_a_run_are_listed_newest_first(door, tmp_path):
    """With the detail for operators."""
    run = door.submit(tmp_path)
    for round_number in (1, 2):
        refusal = Refusal(Code.NOT_FINITE, "Expected numbers.", detail="w[3]")
        door.contexts.refusals.add("ward-3", run, round_number, refusal)
    _, listed = door.ask("GET", f"/runs/{run}/refusals")
    assert [r["round"] for r in listed["refusals"]] == [2, 1]
    assert listed["refusals"][0]["detail"] == "w[3]"
    assert len(door.ask("GET", f"/runs/{run}/refusals?limit=1")[1]["refusals"]) == 1


# ---- errors and the contract ---------------------------------------------------------------------


def test_internal_error_is_logged_in_full(door, monkeypatch, caplog):
    """The answer only refers to the log, which has the traceback."""

    def broken(**_):
        raise KeyError("the secret inside")

    monkeypatch.setattr(door.contexts.ledger, "list_tokens", broken)
    with caplog.at_level(logging.ERROR):
        message = _fault(door.ask("GET", "/tokens"), 500, "internal")
        assert _until(door, lambda: "the secret inside" in caplog.text)
    assert "secret" not in message
    assert door.ask("GET", "/server")[0] == 200


def test_damaged_store_is_a_server_error(door, tmp_path):
    """500, with the kind of error."""
    digest = door.put_model(write_model(tmp_path / "m.safetensors"))
    door.contexts.models.path(digest).write_bytes(b"rotten")
    _fault(door.ask("POST", "/runs", {"spec": SPEC, "model": digest}), 500, "integrity")


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/nothing", 404), ("PUT", "/runs", 405)]
)
def test_unknown_routes_return_the_same_error_format(door, method, path, status):
    got, document = door.ask(method, path)
    assert (got, set(document)) == (status, {"error"})


@pytest.mark.long
def test_description_covers_every_route(door):
    """Each operation has a description, a result and its errors."""
    _, described = door.ask("GET", "/openapi.json")
    operations = [(p, o) for p, methods in described["paths"].items() for o in methods.values()]
    assert len(operations) > 14
    for path, operation in operations:
        assert operation["description"], path
        [success] = [r for s, r in operation["responses"].items() if s.startswith("2")]
        assert all(media["schema"] for media in success["content"].values()), path
        error = operation["responses"]["422"]["content"]["application/json"]["schema"]
        assert error["$ref"].endswith("/ErrorReply"), path
