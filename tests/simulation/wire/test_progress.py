"""The live display draws every state of a run."""

import io

from rich.console import Console

from fedloom.simulation.wire import progress


def _row(number, accuracy=None, kind="train", state="committed"):
    values = {} if accuracy is None else {"loss": 1 - accuracy, "accuracy": accuracy}
    evaluation = {"num_examples": 9, "values": values} if values else None
    return {"number": number, "kind": kind, "state": state, "evaluation": evaluation}


def _status(**changes):
    return {
        "name": "digits",
        "state": "running",
        "reason": "",
        "rounds_total": 3,
        "rounds_committed": 0,
        "rounds": [],
        "live": {"clients_available": 8},
        **changes,
    }


def _text(status):
    console = Console(file=io.StringIO(), width=100, color_system=None)
    console.print(progress.render(status, elapsed_s=4.2))
    return console.file.getvalue()


def test_a_run_without_a_round_shows_connected_clients():
    text = _text(_status())
    assert "0 of 3" in text
    assert "8 clients available" in text
    assert "4.2 s" in text


def test_an_open_round_shows_its_members_and_scores():
    members = {f"site-{n}": phase for n, phase in enumerate(progress.PHASES, start=1)}
    live = {
        "clients_available": 0,
        "round": {
            "number": 3,
            "kind": "train",
            "state": "reporting",
            "paused": False,
            "members": {**members, "site-10": "reported"},
            "goal": 8,
            "deadline_left_s": 12.3,
        },
    }
    rounds = [_row(1, 0.1), _row(2, 0.8)]
    text = _text(_status(rounds_committed=2, rounds=rounds, live=live))
    for part in (
        "2 of 3",
        "80.00%",
        "0.2 ",
        "round 3",
        "reporting",
        "2 of 8 reported",
        "12.3 s left",
    ):
        assert part in text
    assert text.index("site-2") < text.index("site-10")
    assert "1 lost" in text


def test_an_ended_run_gives_its_reason():
    text = _text(_status(state="failed", reason="the strategy raised", live=None))
    assert "failed" in text
    assert "the strategy raised" in text


def test_a_metric_that_is_not_measured_is_left_out():
    """Such as the accuracy of a predicted number; before the first evaluation nobody knows."""
    row = _row(1, 0.1)
    del row["evaluation"]["values"]["accuracy"]
    assert "accuracy" not in _text(_status(rounds=[row]))
    assert "accuracy" in _text(_status())


def test_a_curve_counts_the_rounds_behind_each_model():
    rounds = [
        _row(1, 0.1),
        _row(2, 0.5, state="abandoned"),
        _row(3, 0.6),
        _row(4),
        _row(5, 0.9, kind="evaluate"),
    ]
    points = progress.curve(_status(rounds=rounds))
    assert [(point.rounds, point.accuracy) for point in points] == [(0, 0.1), (1, 0.6), (3, 0.9)]


def test_a_diverged_model_is_drawn_as_unknown():
    rounds = [_row(1, float("nan"))]
    assert progress.curve(_status(rounds=rounds)) == [(0, None, None)]
    assert "accuracy" in _text(_status(rounds=rounds))
