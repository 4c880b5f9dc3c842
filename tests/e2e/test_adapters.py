"""Adapters on a real server: mixed ranks by products, kills of the server, refusals by name."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from fedloom.client import Client
from fedloom.protocol.task_description import task_seed
from fedloom.protocol.tensors.container import read_params
from fedloom.server.ledger import Ledger
from fedloom.simulation.api import simulate
from fedloom.simulation.data.population import Examples, Population
from fedloom.simulation.experiment import EngineSettings, Experiment, run_spec
from support.adapter_client import Ranked, stepped
from support.adapters import REST, A, B, best_error, model_of
from support.agents import played, result, submit, until
from support.marks import sampled
from support.stage import HERE, Stage, wait

pytestmark = pytest.mark.e2e

NAMES = ("ann", "bob")
ROUNDS = 3
SETTINGS = {
    "rounds": ROUNDS,
    "cohort": {"goal": 2, "quorum": 2, "deadline_s": 3600.0, "patience_s": 3600.0},
    "adapters": {"aggregate": "product", "rest": "send"},
}


def function(model):
    """What a model adds to the frozen weight, float64."""
    product = model[B].astype(np.float64) @ model[A].astype(np.float64)
    return product + model.get(REST, 0.0)


def mean_function(model, number):
    """The mean of both clients' functions in a round, computed from the round's model."""
    total, mass = np.zeros((len(model[B]), model[A].shape[1])), 0
    for name in NAMES:
        _, new, weight = stepped(model, name, task_seed(0, number, name))
        factors = [model[n].astype(np.float64) + (new[n] - model[n]) for n in (B, A)]
        total += weight * (factors[0] @ factors[1])
        mass += weight
    return total / mass + model.get(REST, 0.0)


@pytest.mark.parametrize(
    "adapters", ["send", *(pytest.param(a, marks=pytest.mark.long) for a in ("drop", "stack"))]
)
def test_two_devices_of_different_rank(tmp_path, adapters):
    """After each round, the function is the mean of the devices' functions, or the best of it."""
    start = model_of(rest=adapters != "drop")
    table = (
        {"aggregate": "stack"}
        if adapters == "stack"
        else {**SETTINGS["adapters"], "rest": adapters}
    )

    async def scenario(federation, agents):
        for name in NAMES:
            await agents.start(name, Ranked())
        run = await submit(federation, start, **{**SETTINGS, "adapters": table})
        await federation.ended(run)
        assert federation.ledger.run(run).state == "finished"
        rounds = federation.ledger.list_rounds(run)
        assert len(rounds) == ROUNDS
        for row in rounds:
            before, after = (
                read_params(federation.contexts.models.path(digest))
                for digest in (row.model_in, row.model_out)
            )
            expected = mean_function(before, row.number)
            error = np.linalg.norm(function(after) - expected)
            if adapters == "drop":
                assert error == pytest.approx(best_error(expected, 6), rel=1e-4)
                noted = error >= 0.01 * np.linalg.norm(expected)
                assert noted == ("the adapters' rank lost" in row.reason)
            else:
                assert error < 1e-6 * np.linalg.norm(expected)
            assert all(m.phase == "reported" for m in federation.ledger.cohort(run, row.number))

    played(tmp_path, scenario)


def module_of(params):
    """A module whose `state_dict` is these arrays."""
    root = nn.Module()
    for name, array in params.items():
        *path, leaf = name.split(".")
        node = root
        for part in path:
            if part not in dict(node.named_children()):
                node.add_module(part, nn.Module())
            node = node.get_submodule(part)
        node.register_parameter(leaf, nn.Parameter(torch.from_numpy(np.array(array))))
    return root


@pytest.mark.parametrize(
    "adapters", [SETTINGS["adapters"], pytest.param({"aggregate": "stack"}, marks=pytest.mark.long)]
)
def test_a_simulation_ends_with_the_same_bits(tmp_path, adapters):
    """The same clients of different rank, simulated and on a server."""
    start, settings = model_of(rest=True), {**SETTINGS, "adapters": adapters}

    async def scenario(federation, agents):
        for name in NAMES:
            await agents.start(name, Ranked())
        run = await submit(federation, start, **settings)
        await federation.ended(run)
        return {name: np.array(value) for name, value in result(federation, run).items()}

    deployed = played(tmp_path, scenario)
    ones = np.zeros(2, np.int64)
    train = {"epochs": 1, "batch_size": 8, "learning_rate": 0.1}
    simulated = simulate(
        Experiment(
            population=Population(
                examples=Examples(x=ones, y=ones),
                names=NAMES,
                shards=[np.array([0]), np.array([1])],
            ),
            model=partial(module_of, start),
            client=lambda _: Ranked(),
            spec=run_spec({"name": "test", "evaluate": False, "train": train, **settings}),
            engine=EngineSettings(workers=1, device="cpu"),
            test_every=0,
        ),
        show=False,
    ).params
    assert all(simulated[name].tobytes() == deployed[name].tobytes() for name in start)


class Whole(Client):
    """Sends every tensor that it got, one larger."""

    def train(self, params, task):
        return {name: value + 1 for name, value in params.items()}, 1, {}


def test_what_is_frozen_is_not_sent(tmp_path):
    """With freeze_a a client that returns all tensors changes B and the others alone."""
    start = model_of()

    async def scenario(federation, agents):
        await agents.start("ann", Whole())
        run = await submit(
            federation, start, cohort={"goal": 1}, adapters={"aggregate": "freeze_a"}
        )
        await federation.ended(run)
        model = result(federation, run)
        assert [name for name in start if np.array_equal(model[name], start[name])] == [A]

    played(tmp_path, scenario)


def test_another_rank_is_refused_with_factors(tmp_path):
    """The message names the layer, both ranks and what to do; the other device counts."""
    start = model_of()

    async def scenario(federation, agents):
        await agents.start("ann", Ranked())
        run = await submit(
            federation,
            start,
            cohort={"goal": 1, "replace": True, "deadline_s": 3600.0},
            adapters={"aggregate": "factors"},
        )
        await until(lambda: federation.ledger.list_refusals(run, 10))
        (refusal, *_) = federation.ledger.list_refusals(run, 10)
        assert "got 2. Set the device's rank to 6" in refusal.message

    played(tmp_path, scenario)


@pytest.mark.long
@pytest.mark.parametrize(
    "place", sampled(["accept.after:3", "commit.model:2", "commit.stored:1"], 3)
)
def test_a_killed_server_ends_with_the_same_bits(tmp_path, place):
    """SIGKILL between the updates of a round, and while its model is stored."""
    models = []
    for number, armed in enumerate((None, place)):
        with Stage(tmp_path / f"{number}", NAMES) as stage:
            if armed is not None:
                stage.stop_server()
                stage.start_server(FEDLOOM_KILL=armed)
            for name in NAMES:
                stage.start(name, script=HERE / "adapter_client.py")
            stage.online(2)
            run = stage.submit(model_of(rest=True), **SETTINGS)
            if armed is not None:
                wait(lambda stage=stage: stage.server.poll() is not None, "the server to die")
                stage.start_server()
            stage.finished(run)
            assert [clients for _, clients in stage.rounds(run)] == [list(NAMES)] * ROUNDS
            digest = Ledger.in_directory(stage.state).run(run).model
            models.append(read_params(stage.state / "models" / f"{digest}.safetensors"))
    assert all(models[0][name].tobytes() == models[1][name].tobytes() for name in models[0])
