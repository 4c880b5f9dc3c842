"""How far masking sessions are, as a real masked round is played."""

from fedloom.server.engine import SessionState
from fedloom.server.insight.masking import NUM_STEPS, SESSION_WORDS, STEPS, progress, status
from support.masked_sessions import AGREE, BODY, REVEAL, SHARE, Device, Stage, config

NAMES = "abcdefgh"


class Watched(Stage):
    """A stage that looks after each event, as pages do."""

    def __init__(self, *args, **more):
        self.seen = []
        super().__init__(*args, **more)

    def _feed(self, event):
        super()._feed(event)
        self.seen.append(progress(self.engine))


def played(**stops):
    """What is seen of a round; `stops` says which message a device does not send."""
    devices = {name: Device(name, stops.get(name, "")) for name in NAMES}
    stage = Watched(devices, config(len(NAMES)))
    stage.ready()
    stage.run_out()
    return stage


def test_steps_rise_from_nothing_to_the_last():
    """Each is seen, and a round never goes back."""
    steps = [each["step"] for each in played().seen]
    assert steps == sorted(steps)
    assert set(steps) == {0, 1, 2, 3, NUM_STEPS}


def test_all_are_asked_and_in_the_end_all_have_sent():
    """In each step; before the sessions open nobody is asked."""
    seen = played().seen
    for each in seen:
        assert 0 <= each["sent"] <= each["asked"] <= len(NAMES)
        assert sum(each["states"].values()) == each["sessions"]
    assert {each["asked"] for each in seen if each["step"] == 0} == {0}
    assert {each["asked"] for each in seen if each["step"] in (1, 2)} >= {8}
    assert seen[-1] == {
        "step": NUM_STEPS, "steps": NUM_STEPS, "sessions": 2, "states": {"done": 2},
        "sent": 0, "asked": 0,
    }  # fmt: skip


def test_who_drops_out_is_asked_no_more():
    """C deals no shares, so that seven masked updates are waited for."""
    seen = played(c=SHARE).seen
    assert 7 in {each["asked"] for each in seen if each["step"] == 2}
    assert all(each["asked"] <= 7 for each in seen if each["step"] > 1)


def test_the_step_is_that_of_the_session_furthest_behind():
    """The other one is frozen already, and waits."""
    seen = played(a=BODY).seen
    waits = [each for each in seen if each["states"].get("frozen") == 1]
    assert waits
    assert {each["step"] for each in waits} == {2}


def test_a_session_that_fails_does_not_hold_the_step():
    """Two of four sign too little: it is over, and the other goes on."""
    seen = played(a=AGREE, b=AGREE, e=REVEAL).seen
    assert seen[-1]["states"] == {"done": 1, "abandoned": 1}


def test_every_state_has_a_step_or_is_over():
    """And words."""
    assert set(STEPS) == {state for state in SessionState if not state.is_over}
    assert set(SESSION_WORDS) == set(SessionState)


def test_only_a_masked_round_has_masking():
    engine = played().engine
    live = {"clients_available": 3, "round": {"number": 1}}
    assert status(live, engine)["round"]["masking"]["sessions"] == 2
    assert status(live, object())["round"] == {"number": 1, "masking": None}
    assert status({"round": None}, engine) == {"round": None}
