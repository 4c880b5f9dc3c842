"""What fails in a run, and the advice that fits."""

import pytest

from fedloom.server.engine.failures import commonest
from fedloom.server.insight.failing import advice, failing
from fedloom.server.insight.health import Facts, Level, assess
from fedloom.server.ledger.rows import RefusalCount

SHAPE = "ReturnedError: Expected shape (10,) for 'bias' from train, got (3, 1)."
NAN = "not_finite: Expected finite values in 'w', got NaN or infinity."


def kinds(*failures):
    """Failures as a round has them: (how, message) of clients a, b and so on."""
    return [
        each.view()
        for each in commonest(
            (chr(ord("a") + place), how, message) for place, (how, message) in enumerate(failures)
        )
    ]


def live(*failures, accepted=0, working=0, gives_up_in_s=None, paused=False):
    how = [each[0] for each in failures]
    return {
        "round": {
            "number": 4, "state": "reporting", "paused": paused, "accepted": accepted, "quorum": 2,
            "clients": {"offered": 0, "training": working, "reported": accepted, "declined": 0,
                        "failed": how.count("failed"), "refused": how.count("refused"), "lost": 0},
            "gives_up_in_s": gives_up_in_s, "failures": kinds(*failures), "goal": 2,
            "available": 0, "deadline_left_s": 500.0,
        }
    }  # fmt: skip


def over(number, *failures, state="abandoned", accepted=0, cause="quorum", reason=None):
    why = "quorum out of reach: 0 of 2 updates are possible; 2 clients failed"
    return {
        "number": number, "state": state, "accepted": accepted,
        "cause": cause if state == "abandoned" else None,
        "reason": (why if reason is None else reason) if state == "abandoned" else "",
        "failures": kinds(*failures), "closed_at": 5.0, "opened_at": 1.0, "deadline_at": 600.0,
    }  # fmt: skip


def run(*rounds, state="running", reason="", now=None):
    return {
        "id": "ward-1", "state": state, "reason": reason, "rounds": list(rounds), "live": now,
        "created_at": 0.0,
    }  # fmt: skip


BOTH = (("failed", SHAPE), ("failed", SHAPE))


def test_a_healthy_run_fails_nowhere():
    """Nor does a new one."""
    assert failing(run()) is None
    assert failing(run(over(3, state="committed", accepted=2), now=live(accepted=1))) is None


def test_an_open_round_out_of_reach_is_stuck():
    found = failing(run(now=live(*BOTH, gives_up_in_s=2.0)))
    assert found.what.startswith("Round 4 of ward-1 cannot reach its quorum of 2: 2 clients failed")
    assert (found.stuck, found.number) == (True, 4)
    assert "model do not fit" in found.todo


def test_an_open_round_with_failures_alone_is_reported():
    """Others are at work, and the quorum is in reach."""
    found = failing(run(now=live(*BOTH, working=3)))
    assert found.what.startswith("Round 4 of ward-1 has only failures so far: 2 clients failed")
    assert not found.stuck


def test_few_failures_among_many_updates_are_no_finding():
    """They are the clients', not the run's."""
    assert failing(run(now=live(*BOTH, accepted=30))) is None
    assert failing(run(over(3, *BOTH, state="committed", accepted=30))) is None


def test_more_failures_than_updates_are_reported():
    three = (*BOTH, ("refused", NAN))
    found = failing(run(now=live(*three, accepted=2)))
    assert found.what.startswith("More clients fail than succeed in round 4 of ward-1: 3 clients")


def test_one_failure_among_many_at_work_blames_that_client():
    found = failing(run(now=live(BOTH[0], working=9)))
    assert "device of a, or quarantine it" in found.todo


def test_a_run_that_failures_paused_cannot_continue():
    last = over(3, *BOTH)
    found = failing(run(last, state="paused", reason=last["reason"]))
    assert found.what == f"ward-1 cannot continue and is paused: {last['reason']}."
    assert found.todo.endswith("Then continue with `fedloom run resume ward-1`.")
    assert found.stuck


def test_a_run_that_an_operator_paused_is_not_stuck():
    """Nor one whose open round an operator paused."""
    assert failing(run(over(3, *BOTH), state="paused", reason="paused by the operator")) is None
    assert failing(run(now=live(*BOTH, paused=True))) is None


def test_abandoned_rounds_of_a_running_run_are_reported_until_one_commits():
    lost, good = over(3, *BOTH), over(4, state="committed", accepted=2)
    assert failing(run(lost, over(2, *BOTH))).what.startswith("2 of the last 2 rounds were")
    assert failing(run(over(4, cause="stopped"), lost)).what.startswith("1 round was abandoned")
    assert failing(run(good, lost)) is None
    assert failing(run(over(5), good)) is None  # no failures: `health` reports it


def test_a_committed_round_without_any_update_is_reported():
    """A round without a quorum commits although every client failed."""
    found = failing(run(over(3, *BOTH, state="committed")))
    assert found.what.startswith("Round 3 of ward-1 had only failures: 2 clients failed: Returned")


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (NAN, "diverges"),
        ("norm_too_large: Expected a norm of at most 5", "diverges"),
        ("ValueError: Input contains NaN.", "diverges"),
        (SHAPE, "do not fit"),
        ("wrong_dtype: Expected F32 for 'w', got F64.", "do not fit"),
        ("RuntimeError: Error(s) in loading state_dict for Net", "do not fit"),
        ("MemoryError: ", "batch_size"),
        ("OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "batch_size"),
        ("The training process was ended by a signal (SIGKILL)", "batch_size"),
        ("ModuleNotFoundError: No module named 'sklearn'", "install"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'x'", "cannot read"),
        ("weight_out_of_range: Expected a weight of at most 1000", "max_weight"),
        ("KeyError: 'age'", "fedloom client test"),
        ("ValueError: an information about finance", "fedloom client test"),
        ("", "fedloom client test"),
    ],
)
def test_advice_fits_the_failure(message, words):
    """For a few of many clients it is always about these clients."""
    assert words in advice(message, most=True)
    assert "quarantine" not in advice(message, most=True)
    assert "quarantine it" in advice(message, most=False, client="oak")
    assert "quarantine them" in advice(message, most=False)


def test_a_failing_run_has_one_alert_and_is_not_well():
    """It stands for the alerts about its pause, its abandoned rounds and its deadline."""
    last = over(3, *BOTH)
    paused = run(last, state="paused", reason=last["reason"])
    going = run(last, now=live(*BOTH, gives_up_in_s=1.0))
    going["live"]["round"]["deadline_left_s"] = 1.0
    for each in (paused, going):
        found = failing(each)
        seen = {"what": found.what, "todo": found.todo, "stuck": found.stuck, "number": 3}
        facts = Facts(now=9.0, clients_online=2, clients_enrolled=2)
        health = assess(Facts(**{**vars_of(facts), "active": ({**each, "failing": seen},)}))
        [alert] = health.alerts
        assert (health.level, alert.what, alert.run) == (Level.BAD, found.what, "ward-1")
        assert alert.link == "/runs/ward-1/rounds/3"


def vars_of(facts):
    return {name: getattr(facts, name) for name in facts.__slots__}


@pytest.mark.parametrize(
    ("online", "clients", "words"), [(4, 3, "diverges"), (40, 3, "quarantine"), (4, 1, "of oak")]
)
def test_refusals_of_most_clients_are_the_runs_fault(online, clients, words):
    """Those of a few are theirs."""
    row = RefusalCount(
        code="not_finite", times=9, clients=clients, client="oak", last=1.0, message=NAN
    )
    facts = Facts(now=9.0, clients_online=online, clients_enrolled=online, refused=(row,))
    [alert] = assess(facts).alerts
    assert words in alert.todo
