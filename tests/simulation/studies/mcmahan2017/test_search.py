"""A cell's search runs missing rates, stops hopeless ones, and can be interrupted anywhere."""

import json
from contextlib import suppress
from dataclasses import replace

import pytest

from fedloom.protocol.errors import UsageError
from fedloom.simulation.studies.mcmahan2017 import search
from fedloom.simulation.studies.mcmahan2017.grid import SIXTH, THIRD
from fedloom.simulation.studies.mcmahan2017.search import Attempt, RateSearch
from fedloom.simulation.studies.study import without_paths

TINY = RateSearch(
    name="tiny",
    settings={
        "name": "tiny",
        "seed": 0,
        "data": {
            "source": "synthetic",
            "clients": 6,
            "examples": 120,
            "classes": 4,
            "shape": [8],
            "test": 0.5,
        },
        "model": {"name": "logistic"},
        "cohort": {"goal": 3},
        "train": {"epochs": 1, "batch_size": 10},
    },
    target=0.9,
    cap=30,
    start=-6,
)
ENGINE = {"workers": 1, "kernel": "fused"}


@pytest.fixture(autouse=True)
def _bare(monkeypatch):
    """Without pictures and report, which take longer than the rounds."""
    monkeypatch.setattr("fedloom.simulation.output.write_folder.write", lambda *_: None)


def _run(cell, folder, finest=THIRD, on_event=lambda *_: None):
    return search.search(cell, folder, finest=finest, engine=ENGINE, on_event=on_event)


def _bits(found):
    return [(a.k, a.rounds, a.ended, a.last_round, a.digest, a.curve) for a in found.attempts]


def test_the_best_rate_is_reported_from_the_middle_of_the_grid(tmp_path):
    found = _run(TINY, tmp_path)
    assert found.in_the_middle
    assert found.best.ended == search.REACHED
    assert found.best.rounds == min(a.rounds for a in found.attempts if a.rounds)
    assert search.read(tmp_path / "result.json") == found


def test_a_rate_stops_when_it_cannot_be_the_best(tmp_path):
    ended = []
    found = _run(TINY, tmp_path, on_event=lambda _, what: ended.append(what))
    behind = [a for a in found.attempts if a.ended == search.BEHIND]
    assert behind
    assert all(a.rounds is None for a in behind)
    order = [what for what in ended if isinstance(what, Attempt)]
    for place, attempt in enumerate(order):
        if attempt.ended == search.BEHIND:
            best = min(a.rounds for a in order[:place] if a.rounds)
            assert best <= attempt.last_round < best + 1


def test_finished_rates_are_not_run_again(tmp_path):
    found = _run(TINY, tmp_path)
    events = []
    again = _run(TINY, tmp_path, on_event=lambda *event: events.append(event))
    assert events == []
    assert _bits(again) == _bits(found)


def test_a_finer_grid_adds_to_the_coarse_one(tmp_path):
    coarse = {a.k: a for a in _run(TINY, tmp_path).attempts}
    fine = {a.k: a for a in _run(TINY, tmp_path, SIXTH).attempts}
    assert coarse.items() <= fine.items()
    assert len(fine) > len(coarse)


@pytest.mark.long
def test_an_interrupted_search_resumes_with_the_same_bits(tmp_path):
    """Ctrl-C in the second round of every rate changes no result."""
    whole = _run(TINY, tmp_path / "whole")
    cuts = set()

    def cut(rate, what):
        if not isinstance(what, Attempt) and what.trained == 2 and rate not in cuts:
            cuts.add(rate)
            raise KeyboardInterrupt

    found = None
    while found is None:
        with suppress(KeyboardInterrupt):
            found = _run(TINY, tmp_path / "cut", on_event=cut)
    assert len(cuts) == len(whole.attempts)
    assert _bits(found) == _bits(whole)


def test_an_interrupted_rate_reports_its_rounds(tmp_path):
    def cut(_, what):
        if not isinstance(what, Attempt) and what.trained == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _run(TINY, tmp_path, on_event=cut)
    found = search.read(tmp_path / "result.json")
    (attempt,) = found.attempts
    assert (attempt.ended, attempt.last_round, attempt.rounds) == (search.CUT, 2, None)
    assert not found.in_the_middle


@pytest.mark.long
def test_a_raised_cap_continues_from_the_lower_one(tmp_path):
    """No round is run twice, and the bits are those of one run."""
    low = replace(TINY, target=0.999, cap=2)
    found = _run(low, tmp_path / "twice")
    assert {a.ended for a in found.attempts} == {search.CAPPED}
    high, rounds = replace(low, cap=4), []
    again = _run(high, tmp_path / "twice", on_event=lambda _, what: rounds.append(what))
    cut, uncut = (
        {a.k for a in found.attempts},
        {a.k: a for a in _run(high, tmp_path / "once").attempts},
    )
    assert [r.trained for r in rounds if not isinstance(r, Attempt)][:2] == [3, 4]
    for attempt in again.attempts:
        if attempt.k in cut & uncut.keys():
            assert (attempt.digest, attempt.last_round) == (uncut[attempt.k].digest, 4)


@pytest.mark.long
def test_a_rate_that_diverges_is_a_result(tmp_path):
    """The grid reaches rates at which updates are not finite."""
    settings = {**TINY.settings, "max_abs": 1e-6}
    found = _run(replace(TINY, settings=settings, cap=3), tmp_path)
    assert {a.ended for a in found.attempts} == {search.DIVERGED}
    assert found.best.rounds is None


def test_another_cell_in_the_folder_is_refused(tmp_path):
    _run(replace(TINY, cap=1), tmp_path)
    other = replace(TINY, settings={**TINY.settings, "seed": 1})
    with pytest.raises(UsageError, match="another"):
        _run(other, tmp_path)


def test_an_invalid_result_is_refused(tmp_path):
    (tmp_path / "result.json").write_text(json.dumps({"name": "tiny"}))
    with pytest.raises(UsageError, match=r"result\.json"):
        _run(TINY, tmp_path)


def test_a_result_does_not_contain_the_data_folder(tmp_path):
    settings = {**TINY.settings, "data": {**TINY.settings["data"], "download": False}}
    kept = without_paths({**settings, "data": {**settings["data"], "folder": "/home/me"}})
    assert kept == TINY.settings
