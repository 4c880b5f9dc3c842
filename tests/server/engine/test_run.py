"""The next round of a run, and when a run pauses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloom.server.engine import (
    AbortRound,
    Break,
    Finish,
    OpenRound,
    OperatorRefused,
    Pause,
    PauseRound,
    Resume,
    ResumeRound,
    RollBack,
    RolledBack,
    RoundAbandoned,
    RoundCommitted,
    RoundKind,
    Run,
    RunConfig,
    RunProgress,
    RunState,
    Started,
    Stop,
)

TRAIN, EVALUATE = RoundKind.TRAIN, RoundKind.EVALUATE


def started(**changes):
    """A run of two rounds that has opened its first."""
    run = Run(RunConfig(**({"rounds": 2} | changes)))
    assert run.handle(Started()) == [OpenRound(1, TRAIN)]
    return run


def test_a_run_goes_from_round_to_round_and_finishes():
    """Training rounds first, the evaluation last, numbers rising by one."""
    run = started(evaluate_last=True)
    assert run.handle(RoundCommitted(TRAIN)) == [OpenRound(2, TRAIN)]
    assert run.handle(RoundCommitted(TRAIN)) == [OpenRound(3, EVALUATE)]
    assert run.handle(RoundCommitted(EVALUATE)) == [Finish()]
    assert run.state is RunState.FINISHED


def test_a_round_of_evaluation_follows_each_training_round():
    """Also after an evaluation that was abandoned, and after a restart in between."""
    run = started(rounds=2, evaluate_each=True, evaluate_last=True)
    kinds = [TRAIN]
    outcomes = [
        RoundCommitted(TRAIN),
        RoundAbandoned("quorum"),
        RoundCommitted(EVALUATE),
        RoundCommitted(TRAIN),
    ]
    for outcome in outcomes:
        [opened] = run.handle(outcome)
        kinds.append(opened.kind)
        run = Run(run.config, progress=run.progress)
    assert kinds == [TRAIN, EVALUATE, EVALUATE, TRAIN, EVALUATE]
    [finish] = run.handle(RoundCommitted(EVALUATE))
    assert isinstance(finish, Finish)


def test_a_run_without_evaluation_ends_with_its_last_round():
    run = started(rounds=1)
    assert run.handle(RoundCommitted(TRAIN)) == [Finish()]


def test_an_abandoned_round_is_followed_by_another():
    """Its number is not used again."""
    run = started()
    assert run.handle(RoundAbandoned("quorum")) == [OpenRound(2, TRAIN)]
    assert run.handle(RoundCommitted(TRAIN)) == [OpenRound(3, TRAIN)]


def test_a_run_may_open_so_many_training_rounds():
    """Abandoned ones count, the evaluation does not."""
    run = started(rounds=3, most_opened=3, evaluate_last=True)
    assert run.handle(RoundCommitted(TRAIN)) == [OpenRound(2, TRAIN)]
    assert run.handle(RoundAbandoned("quorum")) == [OpenRound(3, TRAIN)]
    assert run.handle(RoundCommitted(TRAIN)) == [OpenRound(4, EVALUATE)]
    assert run.handle(RoundAbandoned("quorum")) == [OpenRound(5, EVALUATE)]
    assert run.handle(RoundCommitted(EVALUATE)) == [Finish()]


def test_a_restored_run_keeps_its_last_training_round_open():
    progress = RunProgress(opened=3, trained=1, open_kind=TRAIN)
    run = Run(RunConfig(rounds=3, most_opened=3), progress=progress)
    assert run.handle(Started()) == []
    assert run.handle(RoundCommitted(TRAIN)) == [Finish()]


def test_rounds_abandoned_in_a_row_pause_the_run():
    """With a reason; resuming resets the count."""
    run = started()
    for number in (2, 3):
        assert run.handle(RoundAbandoned("quorum")) == [OpenRound(number, TRAIN)]
    assert run.handle(RoundAbandoned("no quorum")) == []
    assert run.state is RunState.PAUSED
    assert run.reason == "3 rounds in a row were abandoned; the last one: no quorum"
    assert run.handle(Resume()) == [OpenRound(4, TRAIN)]
    assert run.reason == ""
    for number in (5, 6):
        assert run.handle(RoundAbandoned("quorum")) == [OpenRound(number, TRAIN)]


def test_a_commit_resets_the_count_of_abandoned_rounds():
    """Two, a commit, and two more are not three in a row."""
    run = started(rounds=3)
    for event in [RoundAbandoned("q")] * 2 + [RoundCommitted(TRAIN)] + [RoundAbandoned("q")] * 2:
        run.handle(event)
    assert run.state is RunState.RUNNING


def test_a_fault_pauses_the_run_at_once():
    """A strategy that raised would raise again."""
    run = started()
    assert run.handle(RoundAbandoned("ValueError: no such tensor", fault=True)) == []
    assert (run.state, run.reason) == (RunState.PAUSED, "ValueError: no such tensor")
    assert run.handle(Resume()) == [OpenRound(2, TRAIN)]


def test_pause_and_resume_reach_the_open_round():
    run = started()
    assert run.handle(Pause()) == [PauseRound()]
    assert run.handle(Resume()) == [ResumeRound()]
    assert run.progress.opened == 1


def test_a_round_that_commits_in_a_pause_counts():
    """The next one opens when the run is resumed."""
    run = started()
    run.handle(Pause())
    assert run.handle(RoundCommitted(TRAIN)) == []
    assert run.handle(Resume()) == [OpenRound(2, TRAIN)]


def test_the_last_commit_finishes_a_paused_run():
    run = started(rounds=1)
    run.handle(Pause())
    assert run.handle(RoundCommitted(TRAIN)) == [Finish()]


def test_a_fault_in_a_pause_is_the_reason_shown():
    """It replaces the operator's pause as the reason."""
    run = started()
    run.handle(Pause())
    assert run.handle(RoundAbandoned("the strategy raised", fault=True)) == []
    assert run.reason == "the strategy raised"


def test_stop_aborts_the_open_round():
    """A round that was closing still counts when it commits."""
    run = started()
    assert run.handle(Stop()) == [AbortRound("stopped by the operator")]
    assert run.handle(RoundCommitted(TRAIN)) == []
    assert (run.state, run.progress.trained, run.progress.open_kind) == (RunState.STOPPED, 1, None)


def test_a_broken_run_fails_with_the_reason():
    run = started()
    assert run.handle(Break("model 1f3a is gone")) == [AbortRound("model 1f3a is gone")]
    assert (run.state, run.reason) == (RunState.FAILED, "model 1f3a is gone")
    with pytest.raises(OperatorRefused, match="resume, got one failed"):
        run.handle(Resume())


def test_a_run_opens_no_round_until_its_rollback_is_done():
    """The open round is aborted first; then the count is that of the earlier round."""
    run = started(rounds=3)
    run.handle(RoundCommitted(TRAIN))
    assert run.handle(RollBack("back to 0")) == [AbortRound("back to 0")]
    assert run.handle(RoundAbandoned("back to 0")) == []
    assert run.handle(RolledBack(0)) == [OpenRound(3, TRAIN)]
    assert (run.progress.trained, run.progress.abandoned_in_a_row) == (0, 0)


def test_a_round_that_was_closing_commits_before_the_rollback():
    """Even the last commit does not finish a run that is to be rolled back."""
    run = started(rounds=1, evaluate_last=True)
    run.handle(RoundCommitted(TRAIN))
    run.handle(RollBack("back to 0"))
    assert run.handle(RoundCommitted(EVALUATE)) == []
    assert run.handle(RolledBack(0)) == [OpenRound(3, TRAIN)]
    assert run.handle(RoundCommitted(TRAIN)) == [OpenRound(4, EVALUATE)]  # of the new model


def test_a_failed_rollback_lets_the_run_continue():
    run = started(rounds=1)
    run.handle(RollBack("back to 7"))
    assert run.handle(RoundCommitted(TRAIN)) == []
    assert run.handle(RolledBack(None)) == [Finish()]


def test_a_paused_run_stays_paused_when_it_is_rolled_back():
    """The operator resumes it; earlier abandoned rounds do not count any more."""
    run = started(max_abandoned=1)
    run.handle(RoundAbandoned("quorum"))
    assert run.state is RunState.PAUSED
    assert run.handle(RollBack("back to 0")) == []
    assert run.handle(RolledBack(0)) == []
    assert (run.state, run.progress.abandoned_in_a_row) == (RunState.PAUSED, 0)
    assert run.handle(Resume()) == [OpenRound(2, TRAIN)]


def test_the_round_that_a_rollback_aborts_does_not_pause_the_run():
    run = started(max_abandoned=1)
    run.handle(RollBack("back to 0"))
    assert run.handle(RoundAbandoned("back to 0")) == []
    assert run.handle(RolledBack(0)) == [OpenRound(2, TRAIN)]


def test_a_second_start_opens_no_second_round():
    assert started().handle(Started()) == []


def restart(run):
    """The run as a restarted server sees it."""
    return Run(run.config, state=run.state, reason=run.reason, progress=run.progress)


class RunWitness:
    """Feeds one run, restarts it after every event, and checks it against an independent model."""

    def __init__(self):
        self.run = Run(RunConfig(rounds=3, evaluate_last=True, max_abandoned=2))
        self.open_kind = None
        self.number = 0
        self.commits = 0

    def feed(self, event):
        """Handle the event and check everything."""
        before = self.run.state
        if isinstance(event, RoundCommitted | RoundAbandoned):
            self.commits += isinstance(event, RoundCommitted)
            self.open_kind = None
        try:
            effects = self.run.handle(event)
        except OperatorRefused:
            effects = []
        if before in (RunState.FINISHED, RunState.STOPPED, RunState.FAILED):
            assert (self.run.state, effects) == (before, [])
        for effect in effects:
            self._note(effect)
        self._check_standing()
        self.run = restart(self.run)

    def _note(self, effect):
        match effect:
            case OpenRound(number, kind):
                assert self.open_kind is None
                assert self.run.state is RunState.RUNNING
                assert number == self.number + 1
                self.open_kind, self.number = kind, number
            case Finish():
                assert self.run.state is RunState.FINISHED
                assert self.commits == 4
            case _:
                assert self.open_kind is not None

    def _check_standing(self):
        progress = self.run.progress
        assert (progress.opened, progress.open_kind) == (self.number, self.open_kind)
        assert progress.trained + progress.evaluated == self.commits
        assert self.run.state is not RunState.RUNNING or self.open_kind is not None


ends_of_rounds = st.sampled_from(["commit", "abandon", "fault"])
commands = st.sampled_from([Pause(), Resume(), Started(), Stop(), Break("no model")])


@given(st.lists(st.one_of(ends_of_rounds, ends_of_rounds, commands)))
def test_a_run_keeps_its_invariants_across_restarts(steps):
    """One open round, numbers without gaps, commits counted once, final states unchanged."""
    witness = RunWitness()
    witness.feed(Started())
    for step in steps:
        if not isinstance(step, str):
            witness.feed(step)
        elif witness.open_kind is not None:
            fault = step == "fault"
            commit = RoundCommitted(witness.open_kind)
            witness.feed(commit if step == "commit" else RoundAbandoned("quorum", fault=fault))


def test_a_run_that_only_evaluates_opens_no_training():
    """It opens the wanted number of evaluation rounds; also after a restart."""
    config = RunConfig(rounds=2, evaluate_only=True, evaluate_last=True)
    run = Run(config)
    assert run.handle(Started()) == [OpenRound(1, EVALUATE)]
    assert run.handle(RoundCommitted(EVALUATE)) == [OpenRound(2, EVALUATE)]
    again = Run(config, progress=run.progress)
    for each in (run, again):
        assert each.handle(RoundCommitted(EVALUATE)) == [Finish()]
        assert each.state is RunState.FINISHED
