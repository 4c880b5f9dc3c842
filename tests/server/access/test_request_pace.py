"""Floods of requests over TCP: most get a short answer, and other users are served meanwhile."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from fedloom.server.access import request_pace, token_buckets
from support.door import Door
from support.visitor import Visitor

AT_ONCE, FLOOD = 48, 96


@pytest.fixture
def door(tmp_path, monkeypatch):
    """A server with narrow limits."""
    monkeypatch.setattr(request_pace, "STRANGERS", (8, 2.0))
    monkeypatch.setattr(request_pace, "USERS", (8, 2.0))
    monkeypatch.setattr(token_buckets, "REFUSED_AFTER_S", 1.0)
    with Door(tmp_path / "state", console="127.0.0.1:0") as door:
        yield door


def flood(door, **headers):
    """The statuses of many requests of one peer, and whether each 429 says when to try again."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(
            pool.map(lambda _: Visitor(door.site).ask("GET", "/login", **headers), range(FLOOD))
        )
    refused = [answer for answer in answers if answer.status == 429]
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
    assert all(answer.kind == "denied" for answer in refused)
    return Counter(answer.status for answer in answers)


@pytest.mark.long
@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer nonsense"}], ids=str)
def test_strangers_beyond_their_rate_get_no_page(door, headers):
    """Each waits a second, so the flood takes two: it is served its burst and a little more."""
    found = flood(door, **headers)
    assert set(found) == {200, 429}
    assert 8 <= found[200] < FLOOD / 2


@pytest.mark.long
def test_a_user_is_served_while_strangers_and_other_users_are_not(door):
    """Each user has a bucket, whatever the address."""
    _, loud = door.ask("POST", "/api-tokens", {"name": "loud", "scope": "viewer"})
    _, calm = door.ask("POST", "/api-tokens", {"name": "calm", "scope": "viewer"})
    found = flood(door, authorization=f"Bearer {loud['token']}")
    assert set(found) == {200, 429}
    flood(door)
    assert Visitor(door.site, token=calm["token"]).ask("GET", "/v1/runs").status == 200


@pytest.mark.long
def test_a_peer_is_served_again_once_it_has_stopped(door, monkeypatch):
    """Its debt is one second of its rate; beyond the requests that may wait, 429 comes at once."""
    monkeypatch.setattr(token_buckets, "HELD", 8)
    assert flood(door)[429] > FLOOD / 2
    answers = [Visitor(door.site).ask("GET", "/login").status for _ in range(3)]
    assert answers[-1] == 200
