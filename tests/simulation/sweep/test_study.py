"""The study of a sweep: draws, stored trials, refusals."""

import dataclasses

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from fedloom.protocol.errors import UsageError
from fedloom.simulation.sweep import settings
from fedloom.simulation.sweep.outcome import TrialRow
from fedloom.simulation.sweep.study import TrialStore

RANGES = {
    "train.learning_rate": {"min": 0.001, "max": 1.0, "log": True},
    "train.batch_size": [8, 32, 128],
}


def make(**more):
    return settings.parse({"experiment": {"name": "e"}, "parameters": RANGES, **more})


@pytest.fixture
def open_study(tmp_path):
    """Opens studies in a folder and closes them after the test."""
    opened = []

    def _open(sweep, name="a"):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        opened.append(TrialStore(sweep, folder))
        return opened[-1]

    yield _open
    for study in opened:
        study.close()


def end(study, slot, trial, value=None, state="finished"):
    value = trial.params.get("train.learning_rate", 0.5) if value is None else value
    study.end(
        trial, slot,
        TrialRow(trial=slot + 1, point=slot + 1, state=state, value=value, parameters=trial.params,
            derived={}, settings={}),
    )  # fmt: skip


def drawn(study, slots):
    """What the study draws when simulations run one after another."""
    found = []
    for slot in slots:
        trial = study.start(slot)
        found.append(trial.params)
        end(study, slot, trial)
    return found


@pytest.mark.parametrize("algorithm", ["random", "tpe"])
def test_a_seed_gives_the_same_trials_interrupted_or_not(open_study, algorithm):
    sweep = make(algorithm=algorithm, trials=14, seed=3)
    whole = drawn(open_study(sweep), range(14))
    first = open_study(sweep, "b")
    begun = drawn(first, range(6))
    cut_off = first.start(6)
    first.close()
    second = open_study(sweep, "b")
    assert second.missing() == list(range(6, 14))
    assert begun + drawn(second, second.missing()) == whole
    assert cut_off.params == whole[6]
    assert drawn(open_study(make(algorithm=algorithm, trials=14, seed=4), "c"), [0]) != whole[:1]


def test_random_draws_do_not_depend_on_the_order_of_trials(open_study):
    sweep = make(algorithm="random", trials=6)
    forwards = drawn(open_study(sweep), range(6))
    assert drawn(open_study(sweep, "b"), reversed(range(6))) == forwards[::-1]


@pytest.mark.parametrize("algorithm", ["random", "tpe"])
def test_a_finite_space_is_searched_without_repetition(open_study, algorithm):
    sweep = make(
        algorithm=algorithm, trials=50, parameters={"a": [1, 2, 3], "b": {"min": 1, "max": 3}}
    )
    study = open_study(sweep)
    found = drawn(study, study.missing())
    assert len({tuple(each.values()) for each in found}) == len(found) == 9


@pytest.mark.parametrize("algorithm", ["random", "tpe"])
def test_equal_settings_of_different_parameters_are_drawn_once(open_study, algorithm):
    sweep = make(
        algorithm=algorithm, trials=50, parameters={"a": [1, 2, 4, 8]}, variables={"b": [0, 1]},
        derived={"c": "a ** b"},
    )  # fmt: skip
    study = open_study(sweep)
    chosen = [tuple(sweep.settings(each).values()) for each in drawn(study, study.missing())]
    assert len(set(chosen)) == len(chosen) == 7


def test_repeats_share_their_settings(open_study):
    study = open_study(make(algorithm="random", trials=2, repeats=3))
    trials = [study.start(slot) for slot in range(6)]
    assert trials[0].params == trials[1].params == trials[2].params
    assert trials[3].params == trials[4].params != trials[0].params


def test_tpe_prefers_good_regions(open_study):
    study = open_study(make(algorithm="tpe", trials=40, seed=0))
    rates = [each["train.learning_rate"] for each in drawn(study, range(40))]
    geometric = [sorted(part)[len(part) // 2] for part in (rates[:10], rates[30:])]
    assert geometric[1] > 2 * geometric[0]


def test_failed_trials_can_be_run_again(open_study):
    study = open_study(make(trials=3, algorithm="random"))
    end(study, 0, study.start(0), state="failed")
    end(study, 1, study.start(1))
    assert study.missing() == [2]
    study.retry_failed()
    assert study.missing() == [0, 2]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"metric": "loss"}, "metric"),
        ({"seed": 9}, "seed was null, is 9"),
        ({"experiment": {"name": "e", "rounds": 3}}, "experiment.rounds was null, is 3"),
        ({"parameters": {**RANGES, "train.batch_size": [8, 16]}}, r"train\.batch_size\.values"),
        ({"derived": {"rounds": "3"}}, "derived.rounds"),
    ],
)
def test_a_changed_sweep_is_refused_with_the_difference(open_study, more, said):
    base = {"algorithm": "random", "trials": 3}
    open_study(make(**base))
    with pytest.raises(UsageError, match=said):
        open_study(make(**base, **more))


def test_an_incomplete_line_in_the_journal_is_ignored(open_study, tmp_path):
    sweep = make(algorithm="random", trials=3)
    study = open_study(sweep)
    drawn(study, range(2))
    study.close()
    path = tmp_path / "a" / "study.journal"
    path.write_bytes(path.read_bytes() + b'{"op_code": 4, "tr')
    assert drawn(open_study(sweep), [2]) == drawn(open_study(sweep, "b"), range(3))[2:]
    assert open_study(sweep).missing() == []


def test_optuna_reads_the_journal(open_study, tmp_path):
    drawn(open_study(make(algorithm="random", trials=3)), range(3))
    backend = JournalFileBackend(str(tmp_path / "a" / "study.journal"))
    study = optuna.load_study(study_name="sweep", storage=JournalStorage(backend))
    assert study.best_value == max(t.params["train.learning_rate"] for t in study.trials)


def test_more_trials_continue_in_the_same_folder(open_study):
    sweep = make(algorithm="random", trials=2)
    drawn(open_study(sweep), range(2))
    longer = open_study(dataclasses.replace(sweep, trials=4))
    assert longer.missing() == [2, 3]


def places(study):
    return [tuple(study.place(slot)) for slot in study.missing()]


@pytest.mark.parametrize("algorithm", ["grid", "random", "tpe"])
def test_more_seeds_run_only_the_new_ones(open_study, algorithm):
    """Trials keep their numbers and settings."""
    points = {"a": [1, 2, 3], "b": [0.1, 0.2]}
    sweep = make(algorithm=algorithm, trials=6, repeats=2, parameters=points)
    before = drawn(open_study(sweep), range(12))
    study = open_study(dataclasses.replace(sweep, repeats=3))
    assert study.missing() == list(range(12, 18))
    assert places(study) == [(point, 2) for point in range(6)]
    assert [row.trial for row in study.rows] == list(range(1, 13))
    assert drawn(study, study.missing()) == before[::2]


def test_fewer_seeds_show_fewer_and_run_nothing(open_study):
    sweep = make(algorithm="random", trials=2, repeats=3)
    drawn(open_study(sweep), range(6))
    fewer = open_study(dataclasses.replace(sweep, repeats=1))
    assert fewer.missing() == []
    assert fewer.num_slots == 2
    assert [row.trial for row in fewer.rows] == [1, 4]
    assert len(open_study(sweep).rows) == 6, "the others are kept"


def test_an_interrupted_sweep_can_get_more_seeds(open_study):
    """What had begun is begun again under its number; each place has one number."""
    sweep = make(algorithm="random", trials=3, repeats=2)
    study = open_study(sweep)
    drawn(study, range(2))
    begun = study.start(2).params
    study.close()
    longer = open_study(dataclasses.replace(sweep, repeats=3))
    assert places(longer)[0] == (1, 0)
    assert sorted(places(longer)) == [(0, 2), *((p, r) for p in (1, 2) for r in range(3))]
    assert drawn(longer, longer.missing())[0] == begun
    assert places(open_study(dataclasses.replace(sweep, repeats=3))) == []


def test_a_study_of_an_older_version_can_get_more_seeds(open_study, tmp_path):
    """It has the number of seeds, and no place of its trials."""
    sweep = make(algorithm="random", trials=2, repeats=2)
    before = drawn(open_study(sweep), range(4))
    path = tmp_path / "a" / "study.journal"
    lines = [line for line in path.read_text().splitlines(True) if '"place"' not in line]
    path.write_text("".join(lines).replace('"algorithm":', '"repeats":2,"algorithm":', 1))
    longer = open_study(dataclasses.replace(sweep, repeats=3))
    assert places(longer) == [(0, 2), (1, 2)]
    assert drawn(longer, longer.missing()) == before[::2]


def test_reordered_parameters_are_refused(open_study):
    """Their order numbers a grid's combinations: some would run twice and others never."""
    open_study(make(algorithm="grid", parameters={"a": [1, 2], "b": [1, 2]}))
    with pytest.raises(UsageError, match="in the order a, b, are b, a"):
        open_study(make(algorithm="grid", parameters={"b": [1, 2], "a": [1, 2]}))


@pytest.mark.parametrize("name", ["median", "asha", "hyperband"])
def test_a_hopeless_trial_is_pruned_and_a_good_one_is_not(open_study, name):
    pruner = {"name": name, "warmup_rounds": 2, "startup_trials": 2}
    study = open_study(make(algorithm="random", trials=12, pruner=pruner))

    def run(slot, level):
        trial = study.start(slot)
        for step in range(1, 21):
            if study.report(trial, step, level * step):
                assert step >= 2
                end(study, slot, trial, state="pruned")
                return True
        end(study, slot, trial, value=level)
        return False

    assert not run(0, 10.0)
    assert not run(1, 11.0) or name != "median"
    for slot in range(2, 5):
        run(slot, 9.0 + slot)
    assert run(5, -1.0)
    assert not run(6, 100.0)


def test_without_a_pruner_nothing_is_pruned(open_study):
    study = open_study(make(algorithm="random", trials=3))
    assert not study.report(study.start(0), 1, float("-inf"))
