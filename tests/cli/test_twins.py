"""Every action of the API has a command.

The actions come from the routes of the application; a route that takes the action's name in its
path counts as several. Each command runs against a real server, and its requests are recorded.
"""

import json
import re

import pytest
from click.testing import CliRunner
from fastapi import routing

from fedloom.cli.connection import api_client
from fedloom.cli.main import main
from fedloom.server.queries import client_views, views
from support.door import Door, write_model

RUN_TOML = 'name = "digits"\n[cohort]\ngoal = 2\n[train]\nepochs = 1\nlearning_rate = 0.1\n'

CHOICES = {
    "/v1/runs/{run}/{action}": ("action", views.Action),
    "/v1/clients/{name}/{hold}": ("hold", client_views.Hold),
}
"""Routes that take the action's name in their path: the parameter and its values."""

NO_TWIN = {"POST /v1/me/password": "only for a browser's session; administrators use `user passwd`"}

TWINS = {
    "POST /v1/api-tokens": "api-token create ci --scope viewer",
    "POST /v1/api-tokens/{token_id}/revoke": "api-token revoke {api_token} --yes",
    "POST /v1/client-groups": "client quarantine ward-1 ward-2 --yes",
    "POST /v1/clients/{name}/devices": "client devices ward-1 3",
    "POST /v1/clients/{name}/drain": "client drain ward-1 --yes",
    "POST /v1/clients/{name}/labels": "client label ward-1 site=north floor-",
    "POST /v1/clients/{name}/note": "client note ward-1 camera",
    "POST /v1/clients/{name}/quarantine": "client quarantine ward-1 --reason odd --yes",
    "POST /v1/clients/{name}/release": "client release ward-1 --yes",
    "POST /v1/clients/{name}/study": "client study ward-1 cardio",
    "POST /v1/clients/{name}/revoke": "client revoke ward-1 --yes",
    "POST /v1/login-links": "console",
    "POST /v1/models/{digest}/promote": "model promote {run} --yes",
    "POST /v1/privacy/budgets": "privacy set-budget 8 --delta 1e-6 --label nobody --yes",
    "POST /v1/privacy/budgets/remove": "privacy remove-budget --label nobody --yes",
    "POST /v1/runs": "run submit run.toml --model {digest}",
    "POST /v1/runs/check": "run submit run.toml --model {digest} --check",
    "POST /v1/runs/describe": "run describe run.toml",
    "POST /v1/runs/{run}/abort": "round abort {run} --reason odd --yes",
    "POST /v1/runs/{run}/close": "round close {run} --yes",
    "POST /v1/runs/{run}/extend": "round extend {run} --by 1m --yes",
    "POST /v1/runs/{run}/goal": "run goal {run} --updates 1 --yes",
    "POST /v1/runs/{run}/pause": "run pause {run} --yes",
    "POST /v1/runs/{run}/priority": "run priority {run} --share 2 --yes",
    "POST /v1/runs/{run}/resume": "run resume {run} --yes",
    "POST /v1/runs/{run}/retry": "round retry {run} --yes",
    "POST /v1/runs/{run}/rollback": "model rollback {run} 0 --yes",
    "POST /v1/runs/{run}/stop": "run stop {run} --yes",
    "POST /v1/tokens": "token create --client ward-9",
    "POST /v1/tokens/{token_id}/cancel": "token cancel {token} --yes",
    "POST /v1/users": "user add ann --scope viewer --password-file -",
    "POST /v1/users/{name}/logout": "user logout bob",
    "POST /v1/users/{name}/password": "user passwd bob --password-file -",
    "POST /v1/users/{name}/remove": "user remove bob --yes",
    "POST /v1/users/{name}/scope": "user scope bob --scope viewer",
    "PUT /v1/models": "model upload init.safetensors",
}
PASSWORD = "correct horse battery staple"


def _actions(app):
    """Every action, as method and path."""
    for found in routing.iter_route_contexts(app.routes):
        route = found.original_route
        if not isinstance(route, routing.APIRoute) or not found.path.startswith("/v1/"):
            continue
        name, choices = CHOICES.get(found.path, (None, ()))
        for method in found.methods - {"GET", "HEAD"}:
            if name is None:
                yield f"{method} {found.path}"
            for choice in choices:
                yield f"{method} {found.path.replace('{' + name + '}', choice.value)}"


@pytest.fixture(scope="module")
def door(tmp_path_factory):
    """A server with a client, a run, a user and tokens."""
    with Door(tmp_path_factory.mktemp("door") / "state", console="127.0.0.1:0") as door:
        yield door


@pytest.fixture
def known(door, tmp_path, monkeypatch, action):
    """The names in the commands, created for each test; a user only if the action needs one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDLOOM_DIR", str(door.directory))
    (tmp_path / "run.toml").write_text(RUN_TOML)
    path = write_model(tmp_path / "init.safetensors")
    ledger = door.contexts.ledger
    if not ledger.look_up(["ward-1"]):
        ledger.add_token("t0", b"hash", "ward-1", 2e9)
        ledger.enrol("t0", "serial", 2e9)
    if "/users" in action:
        door.ask("POST", "/users", {"name": "bob", "scope": "viewer", "password": PASSWORD})
    names = {"scope": "viewer", "name": "old"}
    return {
        "run": door.submit(tmp_path),
        "digest": door.put_model(path),
        "token": door.ask("POST", "/tokens", {"client": None})[1]["id"],
        "api_token": door.ask("POST", "/api-tokens", names)[1]["id"],
    }


def test_every_action_has_a_command(door):
    """Fails for a new route without a command, and for a command without a route."""
    assert set(_actions(door.app)) == set(TWINS) | set(NO_TWIN)


@pytest.mark.long
@pytest.mark.parametrize("action", sorted(TWINS))
def test_command_requests_its_action(action, known, monkeypatch):
    """The server accepts the request, or refuses it because of the run's state."""
    asked, answer = [], api_client._Connection.answer

    def recorded(self, method, url, *rest):
        if "preview=true" not in url:
            asked.append(f"{method} {url.partition('?')[0]}")
        return answer(self, method, url, *rest)

    monkeypatch.setattr(api_client._Connection, "answer", recorded)
    words = [*TWINS[action].format(**known).split(), "--json"]
    result = CliRunner().invoke(main, words, input=f"{PASSWORD}\n")
    told = json.loads(result.stdout)
    if "error" in told:
        # The server refuses to close a round without clients; the request itself was valid.
        assert result.exit_code == 2, told
        assert "does not match /v1/openapi.json" not in told["error"]["message"]
    pattern = re.compile(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(action)))
    assert any(pattern.fullmatch(each) for each in asked), (asked, told)
