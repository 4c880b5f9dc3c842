"""FedJAX on one of simulation.py's tasks: run by it, with a Python that has it.

One process with one thread, as FedJAX trains a cohort on one device. Only dense networks: the 2NN.
"""

import importlib.metadata
import os

os.environ.setdefault(
    "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
)

import fedjax
import jax
import jax.numpy as jnp
import torch
from fedjax.algorithms import fed_avg
from simulation_tasks import BATCH, LEARNING_RATE, SEED, child, loss_of


def scores(params, x):
    """Of linear layers with ReLU between them."""
    for number in range(0, len(params), 2):
        x = x @ params[number].T + params[number + 1]
        x = jax.nn.relu(x) if number + 2 < len(params) else x
    return x


def loss(params, batch, rng):  # noqa: ARG001
    """Mean cross-entropy."""
    logs = jax.nn.log_softmax(scores(params, batch["x"]))
    return -jnp.take_along_axis(logs, batch["y"][:, None], axis=1).mean()


def main():
    _, task, gate = child(__doc__)
    x, y = (values.numpy() for values in task.data())
    model = task.model()
    if not task.trains or any(p.ndim > 2 for p in model.parameters()):
        raise SystemExit("FedJAX is measured on the 2NN only")
    clients = [fedjax.ClientDataset({"x": x[k], "y": y[k]}) for k in range(task.clients)]
    algorithm = fed_avg.federated_averaging(
        jax.grad(loss),
        client_optimizer=fedjax.optimizers.sgd(learning_rate=LEARNING_RATE),
        server_optimizer=fedjax.optimizers.sgd(learning_rate=1.0),
        client_batch_hparams=fedjax.ShuffleRepeatBatchHParams(
            batch_size=BATCH, num_epochs=1, drop_remainder=False
        ),
    )
    state = algorithm.init([jnp.asarray(p.detach().numpy()) for p in model.parameters()])
    key = jax.random.PRNGKey(SEED)
    while True:
        key, draw = jax.random.split(key)
        chosen = jax.random.choice(draw, task.clients, (task.cohort,), replace=False)
        keys = jax.random.split(key, task.cohort)
        cohort = [(str(k), clients[int(k)], rng) for k, rng in zip(chosen, keys, strict=True)]
        state, _ = algorithm.apply(state, cohort)
        jax.block_until_ready(state.params)
        if not gate():
            break
    with torch.no_grad():
        for mine, found in zip(model.parameters(), state.params, strict=True):
            mine.copy_(torch.tensor(jax.device_get(found)))
    version = f"{importlib.metadata.version('fedjax')} (JAX {jax.__version__})"
    gate.tell(loss=loss_of(model, task), version=version)


if __name__ == "__main__":
    main()
