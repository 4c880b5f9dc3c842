"""[privacy] with mechanism = "distributed" in a masked run: what is shown, sent and counted."""

import numpy as np
import pytest

from fedloom.client.update.clip_and_noise import Guard
from fedloom.protocol.errors import UsageError
from fedloom.protocol.task_message import from_message, to_message
from fedloom.protocol.task_words import words_of
from fedloom.server.engine import RoundKind
from fedloom.server.planning import masking as planned
from fedloom.server.planning.spec import parse
from fedloom.server.planning.task import describe
from fedloom.strategies.masking.sessions import sum_lines

pytest.importorskip("dp_accounting")

SHARED = {"mechanism": "distributed", "clip": 1.0, "noise_multiplier": 1.0, "delta": 1e-5}
RUN = {
    "cohort": {"goal": 20},
    "train": {"epochs": 1, "learning_rate": 0.1},
    "masking": {"group": 64},
}


def test_noise_of_sessions_is_shown_with_its_claim():
    """The grid has room for twelve standard deviations; nothing is rounded stochastically."""
    spec = parse({**RUN, "privacy": SHARED, "max_abs": 1024.0})
    facts = spec.sum_facts()
    assert (facts["exponent"], facts["max_abs"], facts["stochastic"]) == (23, 1.0, False)
    assert facts["precision"] is None
    noise = [(each["members"], each["honest"]) for each in facts["masking"]["sessions"]]
    assert noise == [(16, 6), (20, 7)]
    lines = sum_lines(facts)
    assert abs(facts["bound"] - 2**23 * (64 + 24 * 3**0.5)) < 2000  # 12 · 2 · √(n / h) · clip
    assert f"12 standard deviations is at most {facts['bound']:,} < 2^31" in lines[2]
    assert "each adds noise of at least 3.171e+06 steps, and 7 are sure to be" in lines[4]
    claim = spec.privacy_plan().claim()
    assert claim["mechanism"] == "distributed"
    assert "together with up to 5 of 16 and 7 of 20 of its devices" in claim["against"]
    assert claim["neighbours"].startswith("zero-out")
    assert "up to 1.73 × clip by all of them" in claim["noise"]
    assert claim["sampling"].startswith("none assumed")
    assert any("work with the server" in each for each in claim["assumes"])
    assert claim["server"].startswith("not trusted")


def test_a_private_masked_task_has_the_noise_and_no_words():
    """What is in the message is enough for the device; no number of examples leaves."""
    spec = parse({**RUN, "privacy": SHARED})
    task = describe(spec, run="r", number=1, trained=0, kind=RoundKind.TRAIN, clip=1.0)
    assert spec.masked_words().names == words_of(task).names == ()
    message = to_message(task)
    read = from_message(message)
    assert read.privacy == task.privacy
    guard = Guard.of(read.privacy)
    assert (guard.noise_multiplier, guard.session_noise) == (0.0, 1.0)
    given = {"members": 16, "exponent": read.masking.exponent, "size": 100, "round": 1}
    share = guard.share(**given, key=bytes(32))
    assert share.sampler == spec.session_noise().sampler(spec.exponent(), 16, 100)
    other = guard.share(**given, key=bytes(31) + b"1")
    key = ("delta", "w")
    assert not np.array_equal(share.block(key, 0, 9), other.block(key, 0, 9))
    with pytest.raises(UsageError, match="at least 3 members"):
        guard.share(**{**given, "members": 2}, key=bytes(32))


def test_abandoned_rounds_cost_epsilon_with_noise_of_sessions():
    """The server may have seen the sums; so a run opens no more rounds than its claim has."""
    spec = parse({**RUN, "rounds": 9, "privacy": {**SHARED, "budget": 15.0}})
    plan, config = spec.privacy_plan(), spec.run_config()
    assert 1 < config.rounds < 9
    assert config.most_opened == config.rounds == plan.last
    assert plan.released(3, 5) == 5
    assert plan.spent(1, 4)["epsilon"] == plan.epsilon(4)


def test_servers_refuse_noise_that_they_know():
    spec = parse({**RUN, "privacy": {**SHARED, "noise": "seed"}})
    with pytest.raises(UsageError, match=r"privacy\.noise = .secure. in a masked run"):
        planned.check_deployed(spec.build_masking(), spec.build_privacy())
    planned.check_deployed(spec.build_masking(), parse({**RUN, "privacy": SHARED}).build_privacy())
