"""Compressed updates in simulations: training, error feedback, resumption, refusals."""

import numpy as np
import pytest

from fedloom.client.torch import parameters
from fedloom.protocol.errors import UsageError
from fedloom.server.planning import spec
from fedloom.simulation.api import simulate
from fedloom.simulation.training.simulator import Simulation
from support.experiments import Nudge, experiment, population

CODECS = {
    "fp16": {},
    "bf16": {},
    "int8": {"block": 16},
    "int4": {"block": 16},
    "top_k": {"fraction": 0.1},
    "random_k": {"fraction": 0.25},
    "low_rank": {"rank": 1},
    "lossless": {},
}


BOTH = {"up": {"name": "top_k", "fraction": 0.1}, "down": {"name": "int8", "block": 16}}


def up(name, **more):
    return {"up": {"name": name, **CODECS[name], **more}}


@pytest.mark.parametrize("kernel", ["fused", pytest.param("batched", marks=pytest.mark.long)])
@pytest.mark.parametrize("name", list(CODECS))
def test_any_codec_trains(name, kernel):
    """The model learns under every codec; lossless changes no bit."""
    plain = simulate(experiment(rounds=5, kernel=kernel), show=False)
    result = simulate(experiment(rounds=5, kernel=kernel, compression=up(name)), show=False)
    assert [r.accepted for r in result.records] == [r.accepted for r in plain.records]
    before, after = (r.records[-1].test["accuracy"] for r in (plain, result))
    assert after > 0.5
    assert (result.digest == plain.digest) == (name == "lossless")
    assert before > 0.5


@pytest.mark.parametrize("name", list(CODECS))
def test_clients_whose_updates_are_not_finite_are_refused(name):
    bad = population().names[1]
    described = experiment(
        rounds=1,
        client=lambda client: Nudge(client, bad=(bad,)),
        compression=up(name),
        cohort={"goal": 6, "quorum": 2, "deadline_s": 1.0},
    )
    (record,) = simulate(described, show=False).records
    assert "refused" in record.reason


def test_quantised_updates_average_to_their_decoded_values():
    """Each step is a multiple of 1/64: with one block per tensor its maximum is exact."""
    described = experiment(client=Nudge, rounds=1, goal=6, compression=up("int8"))
    result = simulate(described, show=False)
    plain = simulate(experiment(client=Nudge, rounds=1, goal=6), show=False)
    for name, value in plain.params.items():
        np.testing.assert_allclose(result.params[name], value, rtol=0, atol=1e-6)


@pytest.mark.long
def test_error_feedback_is_sent_in_later_rounds():
    def moved(**more):
        described = experiment(
            client=Nudge, rounds=40, goal=6, compression={"up": {"name": "top_k", **more}}
        )
        before = parameters(described.model())
        after = simulate(described, show=False).params
        return np.concatenate([(after[n] - before[n]).reshape(-1) for n in before])

    plain = experiment(client=Nudge, rounds=1, goal=6)
    each = simulate(plain, show=False).params["0.bias"] - parameters(plain.model())["0.bias"]
    meant = 40 * each[0]
    assert moved(fraction=0.5).mean() == pytest.approx(meant, rel=0.05)
    assert moved(fraction=0.5, error_feedback=False).mean() < 0.7 * meant


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in CODECS if name != "random_k"])
def test_models_of_clients_follow_the_server_model(name):
    """The server's own model learns, though clients only get encoded differences."""
    described = experiment(rounds=8, compression={"down": {"name": name, **CODECS[name]}})
    plain = simulate(experiment(rounds=8), show=False)
    result = simulate(described, show=False)
    assert result.records[-1].test["accuracy"] > 0.5
    assert (result.digest == plain.digest) == (name == "lossless")


@pytest.mark.long
def test_a_resumed_simulation_has_the_same_memory(tmp_path):
    """With one worker or two."""
    digests = set()
    for workers in (1, 2):
        whole = Simulation(experiment(rounds=4, workers=workers, compression=BOTH))
        list(whole.rounds())
        digests.add(whole.digest())
        whole.close()
    described = experiment(rounds=4, compression=BOTH)
    path = tmp_path / "checkpoint.safetensors"
    first = Simulation(described, path)
    rounds = first.rounds()
    next(rounds), next(rounds)
    first.save()
    first.close()
    second = Simulation(described, path, resume=True)
    assert len(list(second.rounds())) == 2
    digests.add(second.digest())
    second.close()
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"compression": {"up": {"name": "int9"}}}, "Did you mean 'int8'"),
        ({"compression": {"up": "int8"}}, "compression.up"),
        ({"compression": {"down": {"name": "int8", "error_feedback": True}}}, "compression.down"),
        (
            {"compression": {"down": {"name": "random_k", "fraction": 0.1}}},
            "no random_k as compression.down",
        ),
        ({"compression": {"upp": {"name": "int8"}}}, "up"),
        ({"compression": {"up": {"name": "top_k"}}}, "fraction"),
        (
            {"compression": {"up": {"name": "random_k", "fraction": 0.1, "scaled": True,
                                    "error_feedback": True}}},
            "error_feedback with the codec random_k",
        ),
    ],
)  # fmt: skip
def test_unsupported_compressions_are_refused(settings, said):
    train = {"epochs": 1, "learning_rate": 0.1}
    with pytest.raises(UsageError, match=said):
        spec.parse({"cohort": {"goal": 3}, "train": train, **settings})


def test_sparse_codecs_and_rules_that_compare_clients_are_refused_together():
    """Medians would use the zeros of unsent values; the message names both parts."""
    for name in ("top_k", "random_k"):
        with pytest.raises(UsageError, match=f"median.*{name}"):
            spec.parse(
                {
                    "train": {"epochs": 1, "learning_rate": 0.1},
                    "cohort": {"goal": 3, "quorum": 3},
                    "aggregation": {"name": "median"},
                    "compression": up(name),
                }
            )
