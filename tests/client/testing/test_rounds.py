"""Rounds in this process, which give the bits of a server."""

import asyncio
import subprocess
import sys

import numpy as np
import pytest

from fedloom.client import save_file
from fedloom.client.numpy import gradient_client
from fedloom.client.testing import rounds
from fedloom.protocol.errors import UsageError
from support.agents import Adder, Agents, result, submit
from support.patience import PATIENCE_S

RNG = np.random.default_rng(1)
X = RNG.normal(size=(60, 3))
Y = X @ np.array([1.0, -1.0, 2.0])
START = {"w": np.zeros(3)}


def _gradient(params, x, y):
    error = x @ params["w"] - y
    return np.mean(error**2), {"w": 2 * x.T @ error / len(y)}


def _client(part):
    return gradient_client(_gradient, (X[part], Y[part]), held_out=(X, Y), initial=START)


def _clients():
    return {"ann": _client(slice(0, 20)), "bo": _client(slice(20, 60))}


def test_one_client_learns():
    """The loss falls; the round's initial model is evaluated."""
    played = rounds(_client(slice(None)), num_rounds=4)
    losses = [r.training["loss"] for r in played.rounds]
    assert losses == sorted(losses, reverse=True)
    assert [r.number for r in played.rounds] == [1, 2, 3, 4]
    assert played.rounds[0].evaluation["loss"] == pytest.approx(np.mean(Y**2))
    assert played.rounds[-1].update_bytes > 24
    assert not START["w"].any()


RUNS = {
    "plain": {},
    "momentum and a proximal term": {
        "strategy": {"name": "fedavgm", "momentum": 0.5},
        "rule": {"name": "fedprox", "mu": 0.5},
    },
    "control variates": {"strategy": {"name": "scaffold", "clients": 2}},
    "the largest third with memory": {
        "compression": {"up": {"name": "top_k", "fraction": 0.34, "error_feedback": True}}
    },
    "alike": {"weighting": "uniform"},
}


@pytest.mark.long
@pytest.mark.parametrize("name", RUNS)
def test_a_server_gives_the_same_bits(federation, tmp_path, runner, name):
    """With the same clients and names."""
    settings = {
        "name": "same",
        "seed": 3,
        "train": {"epochs": 2, "batch_size": 8, "learning_rate": 0.05},
        **RUNS[name],
    }
    prefix = f"r{list(RUNS).index(name)}-"
    named = {prefix + name: client for name, client in _clients().items()}

    async def main():
        agents = Agents(federation, tmp_path)
        for each, client in named.items():
            await agents.start(each, client)
        cohort = {"goal": 2, "quorum": 2}
        run = await submit(federation, START, rounds=3, cohort=cohort, **settings)
        await federation.ended(run)
        await agents.stop()
        return result(federation, run)

    deployed = runner.run(asyncio.wait_for(main(), PATIENCE_S))
    played = rounds(named, START, num_rounds=3, run=settings)
    assert played.params["w"].tobytes() == deployed["w"].tobytes()
    assert played.params["w"].any()


def test_models_come_from_files_and_clients_in_lists(tmp_path):
    """The model is the mean of two clients."""
    save_file({"b": np.zeros(2)}, tmp_path / "init.safetensors")
    played = rounds(
        [Adder(1.0, 1), Adder(4.0, 2)],
        tmp_path / "init.safetensors",
        num_rounds=2,
        run={"evaluate": False},
    )
    np.testing.assert_array_equal(played.params["b"], 6.0)
    assert played.rounds[1].training == {"step": 3.0}


@pytest.mark.parametrize(
    ("client", "run", "sentence"),
    [
        (Adder(np.nan), {}, r"update of client-1 in round 1 \(not_finite\)"),
        (Adder(1.0, 0), {}, "num_examples from train above 0, got 0"),
        (Adder(1.0, 1 << 19), {}, "weight_out_of_range"),
        (Adder(9.0), {"max_norm": 1.0}, "norm_too_large"),
        (Adder(), {"privacy": {"clip": 1.0}}, r"without \[privacy\]"),
        (Adder(), {"aggregation": {"name": "median"}}, r"without \[aggregation\]"),
        (Adder(), {"stategy": {}}, "'stategy'. Did you mean 'strategy'"),
        (Adder(), {"strategy": {"name": "fedprox2"}}, "fedprox2"),
        (Adder(), {"train": {"epoch": 1}}, "epoch"),
        (Adder(), {"weighting": "size"}, 'Expected weighting as "examples" or'),
    ],
)
def test_refusals_of_a_server_are_raised(client, run, sentence):
    """The error names the client and the round, or the setting."""
    with pytest.raises(UsageError, match=sentence):
        rounds(client, {"b": np.zeros(2)}, run=run)


def test_tables_of_the_server_are_ignored():
    """A run.toml for a server can be used."""
    run = {"rounds": 100, "cohort": {"goal": 50}, "selection": {"name": "uniform"}}
    assert len(rounds(Adder(), {"b": np.zeros(2)}, num_rounds=1, run=run).rounds) == 1


@pytest.mark.long
def test_it_needs_no_server():
    """The base package is enough."""
    code = (
        "import sys, numpy as np\n"
        "sys.modules['fedloom.server'] = sys.modules['fedloom.simulation'] = None\n"
        "sys.modules['sqlalchemy'] = sys.modules['torch'] = None\n"
        "from fedloom.client import Client\n"
        "from fedloom.client.testing import rounds\n"
        "class Mine(Client):\n"
        "    def train(self, params, task):\n"
        "        return {'w': params['w'] + 1}, 3, {}\n"
        "assert rounds(Mine(), {'w': np.zeros(2)}).params['w'].tolist() == [3, 3]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
