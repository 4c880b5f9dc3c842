"""Answers are made once for equal requests at the same time, and again after a change."""

import asyncio

import pytest
from fastapi import Response

from fedloom.server.http.shared_answers import Answers
from support.door import Door
from support.visitor import Visitor


def listen(door, drawn):
    """Record every rendering of a page's live part."""
    answers = door.app.state.answers
    get = answers.get

    async def noting(key, make):
        def making():
            drawn.append(key)
            return make()

        return await get(key, making)

    answers.get = noting


URL = "/runs/a?part=live"


def test_concurrent_requests_share_one_answer():
    """Ten pages after a change cost one rendering."""

    async def story():
        answers, made = Answers(), []

        async def make():
            made.append(1)
            await asyncio.sleep(0.01)
            return Response("drawn", media_type="text/html")

        got = await asyncio.gather(*(answers.get((URL, "viewer", 1), make) for _ in range(10)))
        return made, set(got)

    made, got = asyncio.run(story())
    assert made == [1]
    assert got == {(200, b"drawn", "text/html; charset=utf-8")}


def test_changes_and_scopes_have_separate_answers():
    async def story():
        answers = Answers()

        def of(text):
            async def make():
                return Response(text)

            return make

        first = await answers.get((URL, "viewer", 1), of("old"))
        admin = await answers.get((URL, "admin", 1), of("with buttons"))
        again = await answers.get((URL, "viewer", 1), of("never made"))
        after = await answers.get((URL, "viewer", 2), of("new"))
        return [body for _, body, _ in (first, admin, again, after)]

    assert asyncio.run(story()) == [b"old", b"with buttons", b"old", b"new"]


@pytest.mark.long
def test_unrelated_change_keeps_the_answer(tmp_path):
    """A page of one run is rendered again only for that run, and at once."""
    with Door(tmp_path / "state") as door:
        runs = [door.submit(tmp_path, name=name) for name in ("one", "other")]
        drawn = []
        listen(door, drawn)
        url = f"/runs/{runs[0]}?part=live"
        for topic, subject, new in (
            ("", "", 1), ("round", runs[0], 0), ("work", "", 0), ("run", runs[1], 0),
            ("run", runs[0], 1), ("refusals", runs[0], 1), ("audit", "", 0),
        ):  # fmt: skip
            before = len(drawn)
            if topic:
                door.call(door.contexts.live.changed, topic, subject)
            for _ in range(3):
                connection = door.connect()
                connection.request("GET", url)
                assert connection.getresponse().status == 200
                connection.close()
            assert len(drawn) - before == new, (topic, subject)


def test_scopes_do_not_share_buttons(tmp_path):
    """A viewer's buttons are disabled, an operator's are not."""
    with Door(tmp_path / "state", console="127.0.0.1:0") as door:
        url, shown = f"/runs/{door.submit(tmp_path)}?part=live", {}
        for scope in ("operator", "viewer"):
            _, made = door.ask("POST", "/api-tokens", {"name": f"a-{scope}", "scope": scope})
            visitor = Visitor(door.site, token=made["token"])
            answers = [visitor.ask("GET", url) for _ in range(2)]
            assert [answer.status for answer in answers] == [200, 200]
            shown[scope] = answers[-1].text
        drawn = {scope for _, scope, _ in door.app.state.answers._made}
        assert drawn == set(shown)
        assert "Your scope does not allow this." in shown["viewer"]
        assert "Your scope does not allow this." not in shown["operator"]


def test_cancelled_request_does_not_cancel_the_others():
    async def story():
        answers, go = Answers(), asyncio.Event()

        async def make():
            await go.wait()
            return Response("drawn")

        leaving = asyncio.ensure_future(answers.get((URL, "viewer", 1), make))
        staying = asyncio.ensure_future(answers.get((URL, "viewer", 1), make))
        await asyncio.sleep(0)
        leaving.cancel()
        go.set()
        return await staying

    assert asyncio.run(story())[1] == b"drawn"
