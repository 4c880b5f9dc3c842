"""The owner's policy: strict parsing, its description, and its gate."""

import json
import time
import tomllib

import pytest

from fedloom.client.owner.policy import Policy, PolicyFile, load, template, words
from fedloom.client.owner.policy_gate import DAY_S, FILE, HOUR_S, KEPT, MOST_LINES, PolicyGate
from fedloom.protocol import settings
from fedloom.protocol.errors import UsageError
from fedloom.protocol.v1 import fleet_pb2


def policy(tmp_path, text):
    path = tmp_path / "policy.toml"
    path.write_text(text)
    return load(path)


def offer(run="digits-0a1b2c", number=1, name="digits", **fields):
    return fleet_pb2.Task(
        key=fleet_pb2.TaskKey(run=run, round=number),
        run_name=name,
        **{"kind": fleet_pb2.TASK_KIND_TRAIN} | fields,
    )


def test_the_template_restricts_nothing_and_shows_every_setting(tmp_path):
    """Comments show the defaults and are valid settings."""
    assert policy(tmp_path, template()) == Policy() == policy(tmp_path, "")
    for item in settings.declared(Policy):
        assert f"# {item.doc}\n# {item.name} = " in template()
    lines = [line.removeprefix("# ") if " = " in line else line for line in template().splitlines()]
    opened = tomllib.loads("\n".join(lines))
    assert opened["runs"]["deny"] == ["test-*"]
    assert settings.from_table(Policy, opened)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[runs]\nalow = []", "'runs.alow'. Did you mean 'allow'?"),
        ("[leaves]\nmin_examples = -1", "at least 0"),
        ('[leaves]\nmetrics = "no"', "true or false"),
        ("[privacy]\nnoise = 1.0", "clip_norm > 0"),
        ('[privacy]\nclip_norm = 1.0\notherwise = "pray"', '"decline" or "add"'),
        ("[privacy]\nclip_norm = nan", "at least 0"),
        ("rounds_per_day = 3", "Did you mean 'runs.rounds_per_day'?"),
        ("[runs", "policy.toml"),
    ],
)
def test_an_error_names_the_file_and_the_setting(tmp_path, text, said):
    with pytest.raises(UsageError, match=r"policy\.toml") as caught:
        policy(tmp_path, text)
    assert said in str(caught.value)


def test_runs_are_allowed_and_denied_by_name_or_id(tmp_path):
    """`deny` takes precedence."""
    rules = policy(tmp_path, '[runs]\nallow = ["digits*", "exact-1"]\ndeny = ["*-secret"]')
    assert rules.objection(offer()) is None
    assert rules.objection(offer(run="exact-1", name="other")) is None
    assert "does not allow" in rules.objection(offer(run="other-1", name="other"))
    assert "denies" in rules.objection(offer(run="x-1", name="digits-secret"))
    nothing = policy(tmp_path, "[runs]\nallow = []")
    assert nothing.objection(offer()) is not None


@pytest.mark.parametrize(
    ("clip", "noise", "seeded", "met"),
    [
        (None, 0, False, False),
        (1.0, 0.5, False, True),
        (0.5, 1.0, False, True),
        (1.0, 0.4, False, False),
        (2.0, 0.5, False, False),
        (0.5, 0.5, False, False),
        (1.0, 0.5, True, False),
    ],
)
def test_protection_is_met_by_a_small_enough_clip_norm_and_enough_noise(
    tmp_path, clip, noise, seeded, met
):
    """Only noise that the server does not know counts."""
    text = "[privacy]\nclip_norm = 1.0\nnoise = 0.5\n"
    asked = {} if clip is None else {
        "privacy": fleet_pb2.Privacy(clip=clip, noise_multiplier=noise, seeded=seeded)
    }  # fmt: skip
    declines = policy(tmp_path, text)
    adds = policy(tmp_path, text + 'otherwise = "add"')
    assert (declines.objection(offer(**asked)) is None) == met
    assert adds.objection(offer(**asked)) is None
    assert (adds.guard(offer(**asked)) is None) == met


def test_evaluation_is_up_to_the_owner(tmp_path):
    """If metrics may not leave, evaluation is declined."""
    evaluate = offer(kind=fleet_pb2.TASK_KIND_EVALUATE)
    assert Policy().objection(evaluate) is None
    for text in (
        "[runs]\nevaluate = false",
        "[leaves]\nmetrics = false",
        '[privacy]\nclip_norm = 1.0\notherwise = "add"',
    ):
        assert policy(tmp_path, text).objection(evaluate) is not None
        assert policy(tmp_path, text).objection(offer()) is None


def test_tensors_leave_by_patterns(tmp_path):
    """`never` takes precedence."""
    rules = policy(tmp_path, '[leaves]\nonly = ["head.*", "body.*"]\nnever = ["*.bias"]')
    names = ("head.weight", "head.bias", "body.weight", "other")
    assert [rules.may_leave(name) for name in names] == [True, False, True, False]


def test_of_a_session_s_noise_only_the_device_s_share_counts(tmp_path):
    """In the largest session: 1 / √22 of the noise in sessions of up to 64, 1 / √6 of 16."""
    rules = policy(tmp_path, "[privacy]\nclip_norm = 1.0\nnoise = 0.4\n")
    for group, noise, met in ((64, 1.0, False), (16, 1.0, True), (64, 2.0, True)):
        asked = offer(
            privacy=fleet_pb2.Privacy(clip=1.0, noise_multiplier=noise),
            masking=fleet_pb2.Masking(group=group, sum_bits=32),
        )
        assert rules.privacy.is_met(asked) is met
    said = rules.objection(offer(
        privacy=fleet_pb2.Privacy(clip=1.0, noise_multiplier=1.0),
        masking=fleet_pb2.Masking(group=64, sum_bits=32),
    ))  # fmt: skip
    assert "noise of 0.2132" in said


def test_rounds_an_hour_and_a_day_are_counted_over_restarts(tmp_path):
    """The same round counts once, and may be resumed."""
    now = [1e9]
    (tmp_path / "policy.toml").write_text("[runs]\nrounds_per_hour = 2\nrounds_per_day = 3")

    def rules():
        return PolicyGate(PolicyFile(tmp_path / "policy.toml"), tmp_path, lambda: now[0])

    for number in (1, 2):
        assert rules().objection(offer(number=number)) is None
        rules().took(offer(number=number))
    assert "2 rounds an hour" in rules().objection(offer(number=3))
    assert rules().objection(offer(number=2)) is None
    now[0] += HOUR_S
    assert rules().objection(offer(number=3)) is None
    rules().took(offer(number=3))
    assert "3 rounds a day" in rules().objection(offer(number=4))
    now[0] -= 2 * HOUR_S
    assert "an hour" in rules().objection(offer(number=4))
    now[0] += 2 * HOUR_S + DAY_S
    assert rules().objection(offer(number=4)) is None


@pytest.mark.parametrize("limit", [0, 5, 150])
def test_the_count_of_many_rounds_takes_bounded_space_and_holds_the_limit(tmp_path, limit):
    """Each round of a day had an entry in a file that was replaced twice a round."""
    now = [1e9]
    policy(tmp_path, f"[runs]\nrounds_per_day = {limit}")
    rules = PolicyGate(PolicyFile(tmp_path / "policy.toml"), tmp_path, lambda: now[0])
    for number in range(1, 301):
        rules.took(offer(number=number))
        rules.answered(offer(number=number))
        now[0] += 1.0
    rules.took(offer(number=301))
    lines = [json.loads(line) for line in (tmp_path / FILE).read_text().splitlines()]
    assert len(lines) <= MOST_LINES
    assert sum(map(len, lines)) <= max(KEPT, limit) + 3 * MOST_LINES
    rules = PolicyGate(PolicyFile(tmp_path / "policy.toml"), tmp_path, lambda: now[0])
    assert (rules.objection(offer(number=302)) is None) == (limit == 0)
    now[0] += DAY_S - limit  # as many as the limit are of the last day
    assert (rules.objection(offer(number=302)) is None) == (limit == 0)
    now[0] += 1.0
    assert rules.objection(offer(number=302)) is None


def test_a_truncated_line_of_the_count_loses_one_round(tmp_path, caplog):
    """A power loss may leave half a line; what was counted before and is counted after holds."""
    policy(tmp_path, "[runs]\nrounds_per_day = 2")

    def rules():
        return PolicyGate(PolicyFile(tmp_path / "policy.toml"), tmp_path)

    for number in (1, 2):
        rules().took(offer(number=number))
    text = (tmp_path / FILE).read_text()
    (tmp_path / FILE).write_text(text[:-10])
    assert rules().objection(offer(number=3)) is None
    rules().took(offer(number=3))
    assert "a part of the count" in caplog.text
    caplog.clear()
    assert "2 rounds a day" in rules().objection(offer(number=4))
    assert not caplog.text  # written anew


def test_the_count_of_an_earlier_version_is_read(tmp_path):
    """One object, replaced as a whole."""
    policy(tmp_path, "[runs]\nrounds_per_day = 2")
    (tmp_path / FILE).write_text(json.dumps({"one": time.time(), "two until 5": time.time()}))
    rules = PolicyGate(PolicyFile(tmp_path / "policy.toml"), tmp_path)
    assert "2 rounds a day" in rules.objection(offer())


def test_another_task_under_a_counted_round_number_counts_again(tmp_path):
    """Otherwise a server could request any number of updates under one number."""
    policy(tmp_path, "[runs]\nrounds_per_day = 1")
    rules = PolicyGate(PolicyFile(tmp_path / "policy.toml"), tmp_path)
    first = offer(model={"digest": "a" * 64}, deadline_s=60.0)
    rules.took(first)
    again = offer(model={"digest": "a" * 64}, deadline_s=30.0)
    assert rules.objection(again) is None  # as after a lost connection
    assert "1 round a day" in rules.objection(offer(model={"digest": "b" * 64}))
    rules.answered(again)
    assert "1 round a day" in rules.objection(first)


def test_an_edit_applies_from_the_next_offer_and_an_error_declines_all(tmp_path, caplog):
    """A deleted file declines every offer too."""
    path = tmp_path / "policy.toml"
    path.write_text("")
    rules = PolicyGate(PolicyFile(path), tmp_path)
    assert rules.objection(offer()) is None
    path.write_text('[runs]\ndeny = ["digits"]')
    assert "denies" in rules.objection(offer())
    path.write_text("[runs]\nnonsense = 1")
    assert "cannot be read" in rules.objection(offer())
    assert "nonsense" in caplog.text
    path.unlink()
    assert "cannot be read" in rules.objection(offer())
    path.write_text("")
    assert rules.objection(offer()) is None


def test_an_agent_does_not_start_if_its_policy_file_is_missing(tmp_path):
    with pytest.raises(UsageError, match=r"policy\.toml"):
        PolicyFile(tmp_path / "policy.toml")


def test_every_setting_changes_the_description(tmp_path):
    plain = words(Policy())
    for text in (
        '[runs]\nallow = ["a*"]', '[runs]\ndeny = ["b"]', "[runs]\nrounds_per_hour = 1",
        "[runs]\nrounds_per_day = 2", "[runs]\nevaluate = false", '[leaves]\nonly = ["head.*"]',
        '[leaves]\nnever = ["e"]', "[leaves]\nmax_bytes = 5", "[leaves]\nmin_examples = 5",
        "[leaves]\nmetrics = false", "[leaves]\nerror_messages = false",
        "[privacy]\nclip_norm = 1.0",
        "[privacy]\nclip_norm = 1.0\nnoise = 2.0",
        '[privacy]\nclip_norm = 1.0\notherwise = "add"',
        "[masking]\nrequired = true", "[masking]\nmin_group = 20", "[masking]\nmin_ready = 100",
        "[masking]\nrepeats = 1", '[masking]\npeers = "peers.pem"',
    ):  # fmt: skip
        said = words(policy(tmp_path, text))
        assert said != plain
        assert all(sentence.endswith(".") for sentence in said)


def test_a_policy_may_require_masks(tmp_path):
    """Runs in clear are declined, evaluations and messages too."""
    required = policy(tmp_path, "[masking]\nrequired = true")
    for kind in (
        fleet_pb2.TASK_KIND_TRAIN,
        fleet_pb2.TASK_KIND_EVALUATE,
        fleet_pb2.TASK_KIND_MESSAGE,
    ):
        assert "masking.required" in required.objection(offer(kind=kind))
    assert required.objection(offer(masking=fleet_pb2.Masking())) is None


def test_no_policy_hides_an_update_among_two(tmp_path):
    """Of two members, each could read the other's update."""
    with pytest.raises(UsageError, match="min_group"):
        policy(tmp_path, "[masking]\nmin_group = 2")


def test_a_file_of_peers_is_beside_the_policy(tmp_path):
    """Wherever the agent was started."""
    assert policy(tmp_path, "").masking.peers == "any"
    found = policy(tmp_path, '[masking]\npeers = "keys/peers.pem"').masking.peers
    assert found == str(tmp_path / "keys" / "peers.pem")
