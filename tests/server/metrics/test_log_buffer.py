"""The log buffer: subjects of lines, filters, and no secrets."""

import asyncio
import io
import json
import logging

import pytest

from fedloom.cli.common.logging import JsonFormatter
from fedloom.server.access import secrets
from fedloom.server.event_hub import Hub
from fedloom.server.metrics.log_buffer import KEPT, LONGEST, LogRing, about

log = logging.getLogger("fedloom.test")
log.setLevel(logging.DEBUG)


@pytest.fixture
def ring():
    """A buffer of this module's logger."""
    ring = LogRing(Hub())
    log.addHandler(ring)
    yield ring
    log.removeHandler(ring)


def test_lines_are_filtered(ring):
    """By client, run or its beginning, level, text and time."""
    log.info("attends", extra=about("oak"))
    log.warning("refused", extra=about("oak", "digits-1", 3))
    log.info("opened", extra=about(run="digits-1", number=4))
    log.info("plain")

    def found(**wanted):
        return [line["message"] for line in ring.lines(**wanted)]

    assert found(client="oak") == ["refused", "attends"]
    assert found(run="digits") == found(run="digits-1") == ["opened", "refused"]
    assert found(client="oak", run="digits-1", level="warning") == ["refused"]
    assert found(run="digits-2") == found(client="oa") == []
    second = ring.lines()[2]
    assert (second["client"], second["run"], second["round"]) == ("oak", "digits-1", 3)
    assert found(since=second["at"])[-1] in ("refused", "attends")
    assert found(since=second["at"] + 3600) == []


def test_pages_of_lines_do_not_overlap(ring):
    """CRITICAL lines count as errors."""
    for number in range(5):
        log.info("line %d", number)
    log.critical("the last")
    first = ring.lines(limit=2)
    rest = ring.lines(before=first[-1]["id"])
    assert [line["message"] for line in first + rest] == [
        "the last", "line 4", "line 3", "line 2", "line 1", "line 0",
    ]  # fmt: skip
    assert [line["message"] for line in ring.lines(level="error")] == ["the last"]


def test_json_logs_have_the_same_fields(ring):
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    log.addHandler(handler)
    try:
        log.warning("refused", extra=about("oak", "digits-1", 3))
    finally:
        log.removeHandler(handler)
    entry = json.loads(stream.getvalue())
    assert (entry["client"], entry["run"], entry["round"]) == ("oak", "digits-1", 3)


def test_secrets_are_masked(ring):
    """Such as in an error of a library."""
    token = secrets.make_api_token()
    device = "fl1.0f3a9c21." + "A" * 43 + "." + "B" * 43
    hidden = [token.secret, "A" * 43, "B" * 43, "hunter2", "c0de", "MHcCAQEE"]
    log.error("%s and %s", token.text(), device)
    log.error("GET /login/link?code=c0de&next=/ by Authorization: Bearer %s", token.secret)
    log.error("cannot connect to postgresql://fl:hunter2@db:5432/fl")
    log.error("-----BEGIN EC PRIVATE KEY-----\nMHcCAQEE\n-----END EC PRIVATE KEY-----")
    said = json.dumps(ring.lines())
    assert [secret for secret in hidden if secret in said] == []
    assert token.id in said  # which kind it was
    assert "@db:5432/fl" in said


def test_buffer_is_bounded(ring):
    """In lines and their length; it never fails its caller."""
    for number in range(KEPT + 10):
        log.debug("%d", number)
    log.error("x" * (LONGEST + 1000), extra=about("c" * 1000))
    ring.emit(logging.LogRecord("x", logging.ERROR, "", 1, "%d", ("not a number",), None))
    lines = ring.lines(limit=KEPT * 2)
    assert len(lines) == KEPT
    assert lines[0]["message"] == "%d"
    assert len(lines[1]["message"]) == LONGEST
    assert len(lines[1]["client"]) == 200


def test_watchers_get_the_fields_of_a_line():
    async def story():
        hub = Hub(pace_s=0)
        ring, watcher = LogRing(hub), hub.watch(["log"])
        with ring.listening():
            log.error("refused", extra=about("oak", "digits-1", 3))
            stream = aiter(watcher)
            return [await anext(stream) for _ in range(2)][1]

    assert b'"client":"oak","run":"digits-1","round":3' in asyncio.run(story())
