"""Metrics and spans of masking sessions, as a real masked round is played."""

from collections import Counter

import pytest

from fedloom.protocol.tracing import Span, Tracer
from fedloom.server.engine import SessionState
from fedloom.server.metrics.masking import SessionWatch
from fedloom.server.metrics.meters import Meters
from support.masked_sessions import AGREE, BODY, REVEAL, SHARE, Device, Stage, config

NAMES = "abcdefgh"


class Noted(Span):
    """A span that records how it ended."""

    def __init__(self, name, parent):
        self.name, self.parent, self.ends = name, parent, []
        self.traceparent = f"{parent}/{name}"

    def end(self, error=""):
        self.ends.append(error)


class Noting(Tracer):
    """Keeps every started span."""

    on = True

    def __init__(self):
        self.spans = []

    def span(self, name, parent="", /, **attributes):
        number = attributes.get("session", "")
        self.spans.append(Noted(f"{name}{number}", parent))
        return self.spans[-1]


class Watched(Stage):
    """A stage whose sessions are watched after each event, as a driver does."""

    def __init__(self, *args, meters, tracer=None, **more):
        self.watch = SessionWatch(meters, tracer or Tracer())
        self.changes = 0
        super().__init__(*args, **more)

    def _look(self):
        self.changes += self.watch.saw(self.engine.sessions, self.now, "round")

    def _feed(self, event):
        super()._feed(event)
        self._look()

    def _perform(self, effect):
        self._look()  # a server performs effects after the event, and an effect may feed another
        super()._perform(effect)


def played(stops, meters=None, kill_at=None):
    """A round whose devices stop at a message each; two sessions, abcd and efgh."""
    meters = Meters() if meters is None else meters
    devices = {name: Device(name, dict(stops).get(name, "")) for name in NAMES}
    stage = Watched(devices, config(len(NAMES)), meters=meters, kill_at=kill_at)
    stage.ready()
    stage.run_out()
    stage.watch.end()
    return stage, samples(meters)


def samples(meters):
    """The values of the metrics of sessions that are not 0, by name and labels."""
    return {
        (s.name.removeprefix("fedloom_masking_"), *s.labels.values()): s.value
        for family in meters.registry.collect()
        for s in family.samples
        if s.name.startswith("fedloom_masking_") and "bucket" not in s.name and s.value
    }


def of(found, name):
    return {labels: value for (key, *rest), value in found.items() if key == name
            for labels in [tuple(rest)]}  # fmt: skip


def test_sessions_count_by_how_and_where_they_end():
    _, found = played({})
    assert of(found, "sessions_total") == {("done", "unmasking"): 2}
    assert of(found, "drop_outs_total") == {}


@pytest.mark.parametrize(
    "stops",
    [{"a": SHARE}, {"a": SHARE, "e": BODY}, {"b": AGREE, "f": SHARE}, {"c": BODY, "h": BODY}],
)
def test_drop_outs_are_those_that_stopped(stops):
    """One of a session, which goes on without it."""
    names = {SHARE: "shares", BODY: "body", AGREE: "agreement"}
    _, found = played(stops)
    wanted = Counter(names[kind] for kind in stops.values())
    assert of(found, "drop_outs_total") == {(name,): n for name, n in wanted.items()}
    assert of(found, "sessions_total") == {("done", "unmasking"): 2}


@pytest.mark.parametrize(
    ("kind", "phase", "state"),
    [
        (SHARE, "shares", "sharing"),
        (BODY, "body", "masking"),
        (AGREE, "agreement", "agreeing"),
        (REVEAL, "reveal", "revealing"),
    ],
)
def test_too_few_messages_end_a_session_in_their_state(kind, phase, state):
    """Two of four: those that it missed are its drop-outs; the other session is whole."""
    _, found = played({"a": kind, "b": kind})
    assert of(found, "drop_outs_total") == {(phase,): 2}
    ended = of(found, "sessions_total")
    assert ended[("abandoned", state)] == 1
    assert sum(ended.values()) == 2


def test_states_take_their_time():
    """Of each session each state once; a session waits for its members on the stage's clock."""
    stage, found = played({"c": BODY})
    counts = of(found, "state_seconds_count")
    states = {state.value for state in SessionState if not state.is_over}
    assert {label for (label,) in counts} <= states
    assert counts[("sharing",)] == counts[("revealing",)] == counts[("unmasking",)] == 2
    waited = of(found, "state_seconds_sum")
    assert waited[("masking",)] > 0
    assert sum(waited.values()) <= 2 * stage.now


@pytest.mark.parametrize("kill_at", [2, 9, 21, 40])
def test_a_restart_counts_nothing_twice(kill_at):
    """The new process begins at 0 and knows what was fixed before."""
    before, after = Meters(), Meters()

    class Killed(Watched):
        def restart(self):
            super().restart()
            self.watch = SessionWatch(after, Tracer())

    devices = {name: Device(name, {"a": SHARE, "e": BODY}.get(name, "")) for name in NAMES}
    stage = Killed(devices, config(len(NAMES)), meters=before, kill_at=kill_at)
    stage.ready()
    stage.run_out()
    assert stage.kill_at is None, "the server was not killed"
    both = Counter(of(samples(before), "sessions_total"))
    both.update(of(samples(after), "sessions_total"))
    assert sum(both.values()) <= 2
    dropped = Counter(of(samples(before), "drop_outs_total"))
    dropped.update(of(samples(after), "drop_outs_total"))
    assert all(dropped[(phase,)] <= 1 for phase in ("shares", "body"))


def test_labels_are_there_before_the_first_session():
    """So that the first increment is seen."""
    text = {
        (s.name, *s.labels.values())
        for family in Meters().registry.collect()
        for s in family.samples
    }
    assert ("fedloom_masking_sessions_total", "done", "unmasking") in text
    assert ("fedloom_masking_drop_outs_total", "shares") in text


def test_changes_are_told_once():
    """To events: as many as states that were reached, and none between."""
    stage, _ = played({})
    before = stage.changes
    assert not stage.watch.saw(stage.engine.sessions, stage.now)
    assert stage.changes == before > 5


def test_each_session_and_each_of_its_states_is_a_span_that_ends_once():
    """Below the round; an abandoned session ends with that word alone."""
    tracer = Noting()
    devices = {name: Device(name, {"a": AGREE, "b": AGREE}.get(name, "")) for name in NAMES}
    stage = Watched(devices, config(len(NAMES)), meters=Meters(), tracer=tracer)
    stage.ready()
    stage.run_out()
    stage.watch.end("the server stops")
    spans = {span.traceparent: span.ends for span in tracer.spans}
    assert (spans["round/session0"], spans["round/session1"]) == (["abandoned"], [""])
    assert spans["round/session1/unmasking"] == [""]
    assert "round/session0/revealing" not in spans
    assert all(len(span.ends) == 1 for span in tracer.spans)


def test_spans_of_open_sessions_end_with_the_server():
    tracer = Noting()
    stage = Watched(
        {name: Device(name) for name in NAMES}, config(8), meters=Meters(), tracer=tracer
    )
    stage.ready()
    stage.watch.end("the server stops")
    stage.watch.end()
    assert [span.ends for span in tracer.spans] == [["the server stops"]] * 4
