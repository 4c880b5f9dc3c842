"""Answers are made once for whoever asks at the same time, and anew after a change."""

import asyncio

from fastapi import Response

from fedloom.server.routes.shared import Answers

URL = "/runs/a?part=live"


def test_those_who_ask_together_get_one_answer():
    """Ten pages that hear of a change cost one drawing."""

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


def test_change_and_scope_have_answers_of_their_own():
    """Nobody is shown what was before, or what only others may do."""

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


def test_whoever_leaves_does_not_take_the_answer_along():
    """A browser that goes away while it waits spoils nothing for the others."""

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
