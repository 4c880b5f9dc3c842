"""The screen of `fedloom top` as a function of the view."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from fedloom.cli.top.bars import ASCII, UNICODE, bar, columns, sparkline
from fedloom.cli.top.facts import ServerFacts
from fedloom.cli.top.frame import frame
from fedloom.cli.top.terminal import split
from fedloom.cli.top.view import View

ROUND = {
    "number": 7, "kind": "train", "state": "reporting", "paused": False, "available": 1,
    "clients": {"training": 2, "reported": 2, "refused": 1},
    "members": {"oak": "training", "elm": "reported", "ash": "reported", "fir": "training",
                "bad-1": "refused"},
    "progress": {"oak": {"fraction": 0.4, "loss": 0.3}}, "training": 0.4,
    "accepted": 2, "goal": 5, "quorum": 3, "deadline_left_s": 30.0,
}  # fmt: skip
RUN = {
    "id": "wards-1", "name": "wards", "state": "running", "reason": "", "created_at": 0.0,
    "rounds_total": 10, "rounds_committed": 6, "rounds_an_hour": 360.0, "time_left_s": 40.0,
    "live": {"clients_available": 1, "round": ROUND}, "best": None,
    "rounds": [{"number": 7, "opened_at": 0.0, "deadline_at": 60.0, "closed_at": None}],
}  # fmt: skip
OVERVIEW = {
    "level": "warn", "headline": "1 thing needs your attention", "clients_online": 6,
    "clients_available": 1, "clients_enrolled": 8, "clients_failing": 2, "rounds_an_hour": 360.0,
    "bytes_up": 2048, "bytes_down": 4096,
    "runs": [RUN, {**RUN, "id": "other-2", "state": "paused", "live": None}],
    "alerts": [{"level": "warn", "what": "The disk is nearly full.", "todo": "Make room.",
                "link": "", "run": ""}],
}  # fmt: skip
REFUSED = [{"at": 0.0, "client": "bad-1", "run": "wards-1", "round": 6, "code": "not_finite",
            "message": "Expected a finite metric 'loss', got nan.", "detail": ""}]  # fmt: skip
DETAIL = {
    **RUN, "model": "a" * 64, "spec": {"strategy": {"name": "fedavg"}}, "privacy": None,
    "rounds": [
        {"number": n, "kind": "train", "state": "committed", "reason": "", "opened_at": 0.0,
         "closed_at": 2.0, "accepted": 5, "training": {"values": {"loss": 1.0 / n}},
         "evaluation": None, "privacy": None}
        for n in range(1, 7)
    ],
}  # fmt: skip
FACTS = ServerFacts(100.0, OVERVIEW, DETAIL, REFUSED, {"federation": "north"})
IDLE = ServerFacts(0.0, {**OVERVIEW, "runs": [], "alerts": []}, server={"federation": "x"})
VIEW = View(facts=FACTS, now=100.0, where="./server", run="wards-1")


def _text(view, width=80, height=24):
    lines = frame(view, width, height)
    return "\n".join(line.plain.rstrip() for line in lines)


@given(
    width=st.integers(20, 200),
    height=st.integers(5, 70),
    changes=st.fixed_dictionaries({}, optional={
        "detail": st.booleans(), "help": st.booleans(), "scroll": st.integers(0, 9),
        "question": st.sampled_from(["", "It ends for good. " * 4]), "message": st.just("Done."),
        "lost_at": st.one_of(st.none(), st.just(90.0)), "glyphs": st.sampled_from([ASCII, UNICODE]),
        "facts": st.sampled_from([None, FACTS, IDLE]),
    }),
)  # fmt: skip
def test_frame_fills_any_terminal_exactly(width, height, changes):
    """The number of lines equals the height, and no text has a line break."""
    lines = frame(replace(VIEW, **changes), width, height)
    assert len(lines) == height
    assert all("\n" not in line.plain for line in lines)


def test_80_by_24_shows_everything():
    """Health, clients, runs, the open round's quorum and deadline, members, refusals and keys."""
    text = _text(VIEW)
    for words in (
        "1 thing needs your attention", "6 of 8 clients online, 5 busy", "360 rounds per hour",
        "The disk is nearly full.", "Make room.", "▸ wards-1", "6/10", "40.0 s", "other-2",
        "paused", "round 7", "2 of 5, quorum 3", "30.0 s left", "oak        ▸ training 40%",
        "elm        ● reported", "bad-1      ✖ refused", "not_finite", "q quit", "north",
    ):  # fmt: skip
        assert words in text, words
    assert max(len(line) for line in text.splitlines()) <= 80


def test_narrow_terminal_shows_the_headline():
    """The count of clients is shortened."""
    text = _text(VIEW, width=44, height=10)
    assert "1 thing needs your attention" in text
    assert "6/8 online" in text
    assert "6 of 8 clients online, 5 busy, 2 failing" in _text(VIEW)


def test_deadline_counts_down_between_reads():
    """Unless the round is paused."""
    assert "20.0 s left" in _text(replace(VIEW, now=110.0))
    paused = {**RUN, "live": {"clients_available": 0, "round": {**ROUND, "paused": True}}}
    facts = replace(FACTS, overview={**OVERVIEW, "runs": [paused]})
    assert "paused, 30.0 s left" in _text(replace(VIEW, facts=facts, now=110.0))


def test_lost_server_is_reported_and_old_data_is_dimmed():
    """Old data cannot be mistaken for present data."""
    lines = frame(replace(VIEW, lost_at=88.0), 80, 24)
    assert "has not answered for 12.0 s" in lines[1].plain
    assert all(str(line.style) == "dim" for line in lines[4:-1] if line.plain.strip())


def test_detail_shows_metrics_and_last_rounds():
    """With the last value and a sparkline."""
    text = _text(replace(VIEW, detail=True))
    assert "fedavg" in text
    assert "loss          0.1667  █" in text
    assert "    6  train     committed         5         2.0 s" in text


def test_question_replaces_the_keys():
    """The other keys do not work then."""
    text = _text(replace(VIEW, question="wards-1 ends permanently; its last model stays."))
    assert "ends permanently" in text
    assert "Press y" in text
    assert "q quit" not in text


def test_without_runs_the_screen_names_the_command():
    """`fedloom run submit` starts the first run."""
    assert "fedloom run submit" in _text(replace(VIEW, facts=IDLE))


def test_hidden_members_are_counted():
    """A line gives the number of members that do not fit."""
    crowd = {**ROUND, "members": {f"client-{i:03d}": "training" for i in range(200)}}
    run = {**RUN, "live": {"clients_available": 0, "round": crowd}}
    text = _text(replace(VIEW, facts=replace(FACTS, overview={**OVERVIEW, "runs": [run]})))
    shown = text.count("▸ training")
    assert f"… {200 - shown} more" in text


@pytest.mark.parametrize("share", [-1.0, 0.0, 0.3, 1.0, 7.0])
def test_bar_has_the_given_width(share):
    """For every share, also outside 0 to 1."""
    for glyphs in (ASCII, UNICODE):
        assert bar(share, 13, glyphs, "", mark=0.5).cell_len == 13


def test_small_parts():
    """A constant series, no finite value, a truncated line, and escape sequences of keys."""
    assert sparkline([1.0, 1.0], 8, ASCII) == "__"
    assert sparkline([None, float("nan")], 8, ASCII) == ""
    assert columns(Text("left" * 9), Text("right"), 20).cell_len == 20
    assert split("\x1b[1;5A\x1bOBq\x1b") == ["\x1b[1;5A", "\x1bOB", "q", "\x1b"]


BEST = {"metric": "accuracy", "round": 5, "value": 0.93456, "model": "b" * 64, "stale": 2,
        "patience": 0}  # fmt: skip


@pytest.mark.parametrize(
    ("width", "words"),
    [(100, "40.0 s  accuracy 0.9346 (round 5)"), (80, "best model: accuracy 0.9346, bbbbbbbbbbbb")],
)
def test_the_best_model_is_in_the_line_of_its_run(width, words):
    """Below the table where it has no room; nothing for runs without one; whole on a run's page."""
    long = f"wards-{'x' * 20}-1"
    run = {**RUN, "id": "wards-1" if width == 100 else long, "best": BEST}
    none = {**RUN, "id": "other-2", "best": {**BEST, "round": None, "value": None}}
    facts = replace(FACTS, overview={**OVERVIEW, "runs": [run, none]}, run={**DETAIL, "best": BEST})
    lines = _text(replace(VIEW, facts=facts, run=run["id"]), width).splitlines()
    [found] = [line for line in lines if words in line]
    assert ("wards-1" in found) == (width == 100)
    assert "BEST" in " ".join(lines) or width == 80
    assert not [line for line in lines if "other-2" in line and "accuracy" in line]
    assert max(len(line) for line in lines) <= width
    page = _text(replace(VIEW, facts=facts, detail=True))
    assert "best model: accuracy 0.9346, bbbbbbbbbbbb of round 5 · 2 evaluations without" in page
    assert "BEST" not in _text(VIEW)


MASKING = {"step": 0, "steps": 4, "sessions": 0, "states": {}, "sent": 0, "asked": 0}


def _masked(state, **masking):
    """A view of a run whose open round is masked."""
    now = {**ROUND, "state": state, "masking": {**MASKING, **masking}}
    run = {**RUN, "live": {**RUN["live"], "round": now}}
    return replace(VIEW, facts=replace(FACTS, overview={**OVERVIEW, "runs": [run]}))


def test_a_masked_round_counts_the_ready_until_its_sessions_open():
    """Then the step of the sessions, and who has sent what they wait for."""
    text = _text(_masked("reporting"))
    assert "round 7 · train · ready 2 · wards-1" in text
    assert " ready " in text
    assert "2 of 5, quorum 3" in text
    text = _text(_masked("masking", step=1, sessions=1, sent=23, asked=40))
    assert "round 7 · train · masking 1/4 · wards-1" in text
    assert "shares from 23 of 40, 1 session" in text
    assert "quorum" not in text


def test_all_sessions_over_is_a_phase_too():
    """Nobody is asked any more."""
    text = _text(_masked("masking", step=4, sessions=2))
    assert "masking 4/4" in text
