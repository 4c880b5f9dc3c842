"""A deadline that too few devices can meet is refused before the first round."""

import re

import pytest

from fedloom.protocol.errors import UsageError
from fedloom.simulation import config, simulate

SETTINGS = {
    "rounds": 2,
    "data": {"source": "digits", "clients": 10},
    "model": {"name": "logistic"},
    "cohort": {"goal": 5, "quorum": 1},
    "train": {"epochs": 1, "batch_size": 16, "learning_rate": 0.1},
    "engine": {"workers": 1},
    "devices": {
        "compute_examples_per_s": {"distribution": "uniform", "low": 10, "high": 100},
        "download_mbit_s": 1,
        "upload_mbit_s": 1,
    },
}


def ended(**changes):
    seen = []
    result = simulate(
        config.load(SETTINGS, changes), show=False, on_round=lambda record, *_: seen.append(record)
    )
    return result, seen


def fastest(**changes):
    """The seconds that the refusal names."""
    with pytest.raises(UsageError, match="No round can end in time") as caught:
        ended(**changes)
    found = re.search(r"need(?:s| up to) ([\d.]+) s.*to ([\d.]+) or more", str(caught.value))
    return str(caught.value), float(found[1]), float(found[2])


@pytest.mark.parametrize("quorum", [1, 3])
def test_the_deadline_that_it_names_suffices(quorum):
    """With the deadline of the message a round commits; just below the time, it is refused."""
    change = {"cohort.quorum": quorum, "cohort.goal": 10}
    text, seconds, wanted = fastest(**{"cohort.deadline_s": 0.01, **change})
    assert ("client-" in text) == (quorum == 1)
    result, _ = ended(**{"cohort.deadline_s": wanted, **change})
    assert result.records[0].state == "committed"
    assert result.records[0].accepted >= quorum
    fastest(**{"cohort.deadline_s": 0.9 * seconds, **change})


def test_a_buffer_that_no_device_can_meet_is_refused_too():
    """Work ends with an abandoned buffer, so it is as long as a round."""
    mode = {"mode": "buffered", "goal": 2, "concurrency": 10}
    _, _, wanted = fastest(cohort={**mode, "deadline_s": 0.01})
    result, _ = ended(cohort={**mode, "deadline_s": wanted})
    assert result.records[0].state == "committed"


def test_no_round_is_begun():
    with pytest.raises(UsageError, match="No round can end in time"):
        simulate(
            config.load(SETTINGS, {"cohort.deadline_s": 0.01}),
            show=False,
            on_round=lambda *_: pytest.fail("a round ended"),
        )


def test_times_that_vary_by_round_are_all_tried():
    """With jitter, a device may be in time in the second or third attempt: not refused."""
    _, seconds, _ = fastest(**{"cohort.deadline_s": 0.01})
    result, _ = ended(
        **{"cohort.deadline_s": 0.8 * seconds, "devices.jitter": 1.0, "cohort.goal": 10}
    )
    assert any(record.state == "committed" for record in result.records)


@pytest.mark.parametrize("codec", ["lossless", "int8"])
def test_an_upload_of_unknown_size_is_not_counted(codec):
    """A deadline of the training alone: the round's own clock says whether updates are in time."""
    slow = {"devices.upload_mbit_s": 0.001, "compression": {"up": {"name": codec}}}
    text, seconds, _ = fastest(**{"cohort.deadline_s": 0.01, **slow})
    spent = float(re.search(r"transfers ([\d.]+) s", text)[1])
    assert (spent < 1) == (codec == "lossless"), seconds
