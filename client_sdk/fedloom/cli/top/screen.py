"""The screen's loop: handles keys and events, reads the server's state, and repaints."""

import queue
import sys
import time
from dataclasses import replace
from typing import Any

from fedloom.cli.connection.api_client import Control
from fedloom.cli.connection.event_stream import SILENCE_S, Event, Feed
from fedloom.cli.top.bars import ASCII, UNICODE, Glyphs
from fedloom.cli.top.facts import ServerFacts, look
from fedloom.cli.top.frame import frame
from fedloom.cli.top.terminal import Terminal
from fedloom.cli.top.view import View
from fedloom.protocol.errors import FedloomError, UnavailableError

TICK_S = 1.0
STALE_S = 5.0
MESSAGE_S = 6.0
TOPICS = ("round", "run", "clients", "refusals")

__all__ = ["SILENCE_S", "Screen", "glyphs", "once"]


def glyphs() -> Glyphs:
    """The symbols that standard output can show."""
    try:
        "█▏┃▁▸─·↑●▲✖○…".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return UNICODE


def once(control: Control, width: int, height: int) -> list[Any]:
    """The present screen as lines."""
    facts, where = look(control, None), control.where
    view = View(facts=facts, now=facts.at, where=where, glyphs=glyphs())
    return frame(view, width, height)


class Screen:
    """A live view of a server.

    Args:
        control: the server, with a timeout of `SILENCE_S`.
    """

    def __init__(self, control: Control) -> None:
        self._control = control
        self._heard: queue.SimpleQueue[Event | str] = queue.SimpleQueue()
        self._view = View(facts=None, now=0.0, where=control.where, glyphs=glyphs())
        self._pending: tuple[tuple[str, ...], dict[str, Any]] | None = None
        self._message_until = 0.0
        self._looked_at = 0.0

    def run(self) -> None:
        """Show the screen until the user quits.

        Raises:
            FedloomError: the server is unreachable at the start, or refuses.
        """
        self._look(look(self._control, None))
        put = self._heard.put
        with Terminal(put) as terminal, Feed(self._control, TOPICS, put):
            self._paint(terminal)
            while self._turn(terminal):
                self._paint(terminal)

    def _turn(self, terminal: Terminal) -> bool:
        """Handle what has arrived, and read the state again if necessary; False to end."""
        news = False
        for item in self._waiting():
            if isinstance(item, Event):
                news |= self._event(item)
            elif item == "redraw":
                terminal.repaint()
            elif item != "resize" and not self._key(item):
                return False
        now = time.monotonic()
        stale = now - self._looked_at > STALE_S
        if self._view.lost_at is None and (news or stale):
            self._refresh()
        if self._view.message and now > self._message_until:
            self._view = replace(self._view, message="")
        return True

    def _waiting(self) -> list[Event | str]:
        """The keys and events that have arrived; waits up to `TICK_S` for one."""
        found: list[Event | str] = []
        try:
            found.append(self._heard.get(timeout=TICK_S))
            while True:
                found.append(self._heard.get_nowait())
        except queue.Empty:
            return found

    def _paint(self, terminal: Terminal) -> None:
        self._view = replace(self._view, now=time.monotonic())
        terminal.paint(frame(self._view, *terminal.size))

    # ---- the server ------------------------------------------------------------------------------

    def _event(self, event: Event) -> bool:
        """Handle an event; True if the state must be read again."""
        match event.name:
            case "denied":
                raise event.data
            case "lost":
                self._lost()
            case "beat":
                pass
            case _:
                if self._view.lost_at is not None:
                    self._view = replace(self._view, lost_at=None)
                    self._say("The server is back.")
                return True
        return False

    def _lost(self) -> None:
        if self._view.lost_at is None:
            self._view = replace(self._view, lost_at=time.monotonic())

    def _refresh(self) -> None:
        try:
            self._look(look(self._control, self._view.run, self._view.facts))
        except UnavailableError:
            self._lost()
        except FedloomError as error:
            self._say(str(error))
            self._looked_at = time.monotonic()

    def _look(self, facts: ServerFacts) -> None:
        run = facts.selected(self._view.run)
        detail = self._view.detail and run is not None
        if self._view.detail and run is not None and run["id"] != self._view.run:
            detail = False
            self._say(f"{self._view.run} is no longer active.")
        chosen = None if run is None else run["id"]
        self._view = replace(self._view, facts=facts, run=chosen, detail=detail)
        self._looked_at = facts.at

    # ---- keys ------------------------------------------------------------------------------------

    def _key(self, key: str) -> bool:
        """Handle a key; False to end."""
        view = self._view
        if self._pending is not None:
            self._answer(key)
        elif key == "q":
            return False
        elif key == "?":
            self._view = replace(view, help=not view.help)
        elif view.help:
            self._view = replace(view, help=False)
        elif key in ("j", "k"):
            self._move(1 if key == "j" else -1)
        elif key == "enter":
            self._view = replace(view, detail=not view.detail and view.run is not None, scroll=0)
        elif key == "esc":
            self._view = replace(view, detail=False)
        elif key in ("p", "c"):
            self._ask(key)
        return True

    def _move(self, by: int) -> None:
        view = self._view
        if view.detail:
            self._view = replace(view, scroll=max(0, view.scroll + by))
        elif view.facts is not None and view.facts.runs:
            runs = view.facts.runs
            at = min(len(runs) - 1, max(0, view.facts.index(view.run) + by))
            self._view = replace(view, run=runs[at]["id"], scroll=0)
            self._refresh()

    def _ask(self, key: str) -> None:
        """Show the consequence of a key's action and ask for confirmation."""
        run = self._view.facts.selected(self._view.run) if self._view.facts else None
        if run is None:
            self._say("No run is active.")
            return
        action = "resume" if run["state"] == "paused" else "pause"
        body: dict[str, Any] = {}
        if key == "c":
            now = (run["live"] or {}).get("round")
            if now is None:
                self._say("No round is open.")
                return
            action, body = "close", {"round": now["number"]}
        path = ("runs", str(run["id"]), action)
        try:
            seen = self._control.post(*path, body=body, preview="true")
        except FedloomError as error:
            self._say(str(error))
            return
        self._pending = (path, body)
        self._view = replace(self._view, question=seen["consequence"], message="")

    def _answer(self, key: str) -> None:
        assert self._pending is not None
        (path, body), self._pending = self._pending, None
        self._view = replace(self._view, question="")
        if key != "y":
            self._say("Nothing was done.")
            return
        try:
            done = self._control.post(*path, body=body)
        except FedloomError as error:
            self._say(str(error))
            return
        self._say(f"Done: {done['consequence']}" if done["changed"] else done["consequence"])
        self._refresh()

    def _say(self, text: str) -> None:
        self._message_until = time.monotonic() + MESSAGE_S
        self._view = replace(self._view, message=text)
