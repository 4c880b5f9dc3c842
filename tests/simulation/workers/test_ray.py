"""Workers as Ray actors; skipped without Ray."""

import pytest

from fedloom.protocol.errors import UsageError
from fedloom.simulation.training.simulator import Simulation
from support.experiments import experiment

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # Ray's own
    pytest.mark.e2e,
    pytest.mark.long,
]
ray = pytest.importorskip("ray")


@pytest.fixture(scope="module")
def cluster():
    """A cluster of this machine with two CPUs."""
    ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False, logging_level="ERROR")
    yield
    ray.shutdown()


def run(described):
    simulation = Simulation(described)
    try:
        records = list(simulation.rounds())
        return simulation.digest(), [record.test for record in records], records
    finally:
        simulation.close()


def test_two_actors_give_the_bits_of_one_process(cluster):
    """Model and metrics."""
    *alone, _ = run(experiment())
    *actors, records = run(experiment(workers=2, backend="ray"))
    assert actors == alone
    assert sum(share.clients for share in records[0].shares) == 4


def test_missing_resources_of_the_cluster_are_refused_at_once(cluster):
    with pytest.raises(UsageError, match="4 workers need 4 CPU; the Ray cluster has 2"):
        Simulation(experiment(workers=4, backend="ray"))


def test_a_workers_error_is_passed_on(cluster):
    """An error of a client's own code reaches the caller."""

    def client(name):
        raise UsageError(f"Expected better of {name}.")

    with pytest.raises(UsageError, match="Expected better of client-00"):
        run(experiment(workers=2, backend="ray", client=client))
