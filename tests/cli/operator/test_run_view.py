"""`fedloom run status`: progress of an open round."""

import io

from rich.console import Console

from fedloom.cli.operator import run_view


def _line(**changes):
    now = {
        "number": 3,
        "kind": "train",
        "state": "reporting",
        "paused": False,
        "clients": {"training": 2},
        "available": 0,
        "accepted": 1,
        "goal": 3,
        "deadline_left_s": None,
        **changes,
    }
    console = Console(file=io.StringIO(), width=120, color_system=None)
    console.print(run_view._open_round({"round": now}, {"state": "running"}))
    return console.file.getvalue().strip()


def test_mean_progress_and_loss_are_shown():
    """Over the members that report them."""
    told = {"a": {"fraction": 0.5, "loss": 0.4}, "b": {"fraction": 0.3, "loss": None}}
    line = _line(training=0.4, progress=told)
    assert line.endswith("1 of 3 updates · 2 training · 40% done (loss 0.4)")
    assert _line(training=0.4, progress={"a": {"fraction": 0.4, "loss": None}}).endswith("40% done")


def test_clients_that_a_claim_holds_back_are_counted():
    line = _line(state="selecting", available=1, held_back=7)
    assert line.endswith("waits for 3 clients (1 available, 7 held back by the privacy claim)")


def test_no_progress_is_shown_without_reports():
    """Also if the server sends no progress."""
    assert _line(training=None, progress={}) == _line()
    assert _line().endswith("2 training")


def test_a_masked_round_says_ready_and_then_how_far_its_sessions_are():
    """In place of updates."""
    masking = {"step": 0, "steps": 4, "sessions": 0, "states": {}, "sent": 0, "asked": 0}
    assert _line(masking=masking).startswith("round 3 (train) ready 1 · 1 of 3 ready")
    masking = {**masking, "step": 2, "sessions": 2, "sent": 5, "asked": 8}
    line = _line(state="masking", masking=masking)
    assert line.startswith("round 3 (train) masking 2/4 · masked updates from 5 of 8, 2 sessions")
