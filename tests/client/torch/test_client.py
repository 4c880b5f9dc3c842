"""The PyTorch client: local training, local tensors and evaluation."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from fedloom.client import Kind, Task, Weighting
from fedloom.client.torch import TorchClient, parameters
from fedloom.client.torch.group import RankTask
from fedloom.client.torch.site import orders
from fedloom.protocol.errors import UsageError
from fedloom.strategies import FedProx, Plain, RoundSettings
from support import tasks


def _task(*, rule=None, seed=1, round_=1, run="r", kind=Kind.TRAIN, **settings):
    defaults = {"epochs": 1, "steps": None, "batch_size": 4, "learning_rate": 0.1}
    return Task(
        run=run,
        round=round_,
        kind=kind,
        settings=RoundSettings(**{**defaults, **settings}),
        rule=rule or Plain(),
        config={},
        seed=seed,
        deadline_s=60.0,
        weighting=Weighting.EXAMPLES,
    )


def _data(num_examples=10, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_examples, 3, generator=generator)
    return x, torch.randint(0, 2, (num_examples,), generator=generator)


def _model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Dropout(0.2), nn.Linear(4, 2))


def _params(model):
    return {name: value.copy() for name, value in parameters(model).items()}


def _trained(task, *, data=None, model=None, **options):
    """The result of one task, always from the same initial values."""
    client = TorchClient(model or _model(), data or _data(), cross_entropy, **options)
    sent, _, _ = client.train(_params(_model()), task)
    return {name: value.copy() for name, value in sent.items()}


def _same(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def test_the_same_task_gives_the_same_bits():
    """The order of examples and dropout depend only on the task's seed."""
    task = _task(epochs=3)
    client = TorchClient(_model(), _data(), cross_entropy)
    received = _params(client.model)
    first = {name: value.copy() for name, value in client.train(received, task)[0].items()}
    torch.manual_seed(99)
    torch.rand(17)
    assert _same(client.train(received, task)[0], first)
    assert _same(_trained(task), first)


def test_another_seed_gives_other_bits():
    """Also the largest seed of the protocol."""
    results = [_trained(_task(seed=seed))["0.weight"] for seed in (0, 1, 2**64 - 1)]
    assert all(not np.array_equal(a, b) for a, b in itertools.combinations(results, 2))


def test_training_restores_torchs_global_generator():
    """The user's random numbers do not change."""
    client = TorchClient(_model(), _data(), cross_entropy)
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    client.train(_params(client.model), _task())
    assert torch.equal(torch.rand(3), expected)


def test_a_full_batch_step_is_a_gradient_step():
    """For least squares the gradient is 2/n · xᵀ(xw − y)."""
    rng = np.random.default_rng(0)
    x, y, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((9, 3), (9, 1), (1, 3)))
    model = nn.Linear(3, 1, bias=False)
    client = TorchClient(model, (torch.from_numpy(x), torch.from_numpy(y)), mse_loss)
    task = _task(epochs=None, steps=1, batch_size=0, learning_rate=0.5)
    sent, num_examples, metrics = client.train({"weight": w}, task)
    gradient = 2 / 9 * (x @ w.T - y).T @ x
    assert np.allclose(sent["weight"], w - 0.5 * gradient, atol=1e-6)
    assert num_examples == 9
    assert metrics == {"loss": pytest.approx(float(np.mean((x @ w.T - y) ** 2)), rel=1e-5)}


def test_averaged_full_batch_steps_equal_the_centralised_one():
    """FedSGD is gradient descent on the examples of all clients (McMahan et al. 2017)."""
    x, y = _data(12)
    model = nn.Linear(3, 2)
    start = _params(model)
    task = _task(epochs=None, steps=1, batch_size=0)
    average = {name: np.zeros(value.shape) for name, value in start.items()}
    for part in (slice(0, 2), slice(2, 7), slice(7, 12)):
        client = TorchClient(model, (x[part], y[part]), cross_entropy)
        sent, num_examples, _ = client.train(start, task)
        for name, value in sent.items():
            average[name] += value.astype(np.float64) * num_examples / 12
    whole, _, _ = TorchClient(model, (x, y), cross_entropy).train(start, task)
    assert all(np.allclose(average[name], whole[name], atol=1e-6) for name in whole)


@pytest.mark.long
def test_the_default_optimizer_takes_the_steps_of_torchs_sgd():
    """The bits are equal; `torch.optim` is not imported."""
    ours = _trained(_task(epochs=3))
    assert _same(_trained(_task(epochs=3), optimizer=torch.optim.SGD), ours)


def test_epochs_visit_every_example_and_steps_may_stop_between():
    """Batches of an epoch partition the data; an epoch's last batch may be smaller."""

    class Seen(Dataset):
        def __init__(self):
            self.indices = []

        def __len__(self):
            return 10

        def __getitem__(self, index):
            self.indices.append(index)
            return torch.zeros(3), 0

    for settings, expected in (
        ({"epochs": 2}, 20),
        ({"epochs": None, "steps": 3}, 10),
        ({"epochs": None, "steps": 4}, 14),
        ({"epochs": None, "steps": 1, "batch_size": 0}, 10),
    ):
        seen = Seen()
        TorchClient(_model(), seen, cross_entropy).train(_params(_model()), _task(**settings))
        assert len(seen.indices) == expected
        assert sorted(seen.indices[:10]) == list(range(10))
        assert sorted(seen.indices[10:20]) in (list(range(10)), sorted(seen.indices[10:14]))


@pytest.mark.parametrize("wrap", ["tensors", "dataset", "items", "loader"])
def test_every_form_of_data_gives_the_same_bits(wrap):
    """Tensors, data sets of tensors or items, and loaders with another batch size and order."""
    x, y = _data()
    forms = {
        "tensors": (x, y),
        "dataset": TensorDataset(x, y),
        "items": [(a, int(b)) for a, b in zip(x, y, strict=True)],
        "loader": DataLoader(TensorDataset(x, y), batch_size=7, shuffle=True),
    }
    assert _same(_trained(_task(), data=forms[wrap]), _trained(_task()))


def test_a_loaders_collate_function_is_used():
    """The user's function joins items into batches."""

    def doubled(items):
        x, y = torch.utils.data.default_collate(items)
        return 2 * x, y

    x, y = _data()
    loader = DataLoader(TensorDataset(x, y), shuffle=True, collate_fn=doubled)
    assert _same(_trained(_task(), data=loader), _trained(_task(), data=(2 * x, y)))


class _Tied(nn.Module):
    """An output layer with the embedding's weights, and a frozen layer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Linear(3, 4, bias=False)
        self.frozen = nn.Linear(4, 3).requires_grad_(requires_grad=False)
        self.head = nn.Linear(3, 4, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        return self.head(self.frozen(self.embedding(x)))


def test_tied_tensors_travel_once_and_stay_tied():
    """By their first name, in the initial model and in updates; both are trained as one."""
    client = TorchClient(_Tied(), _data(), cross_entropy)
    received = client.initial()
    assert set(received) == {"embedding.weight", "frozen.weight", "frozen.bias"}
    received["embedding.weight"] += 1
    sent, _, _ = client.train(received, _task())
    assert set(sent) == {"embedding.weight"}
    model = client.model
    assert model.head.weight is model.embedding.weight
    assert np.array_equal(parameters(model)["head.weight"], sent["embedding.weight"])


def test_a_runs_model_with_both_names_of_a_tied_tensor_needs_them_equal():
    """Both are sent then; two values have no place in one tensor."""
    client = TorchClient(_Tied(), _data(), cross_entropy)
    received = _params(client.model)
    assert "head.weight" in received
    sent, _, _ = client.train(received, _task())
    assert np.array_equal(sent["head.weight"], sent["embedding.weight"])
    received["head.weight"] += 1
    with pytest.raises(UsageError, match=r"'embedding\.weight' and 'head\.weight', which are one"):
        client.train(received, _task())


def test_a_tied_tensor_is_sent_if_one_of_its_names_is_chosen():
    client = TorchClient(_Tied(), _data(), cross_entropy, send=lambda name: "head" in name)
    assert set(client.train(client.initial(), _task())[0]) == {"embedding.weight"}


def test_frozen_parameters_are_not_sent_unless_chosen():
    """They do not change; buffers do."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    model[0].requires_grad_(requires_grad=False)
    everything = set(_params(model))
    client = TorchClient(model, _data(), cross_entropy)
    assert set(client.initial()) == everything
    sent, _, _ = client.train(client.initial(), _task())
    assert set(sent) == everything - {"0.weight", "0.bias"}
    client = TorchClient(model, _data(), cross_entropy, send=lambda name: name != "2.bias")
    assert set(client.train(client.initial(), _task())[0]) == everything - {"2.bias"}


def test_tensors_of_bool_stay_on_the_device():
    """They are in no run's model and in no update; one that changes is kept between rounds."""
    model = nn.Sequential(nn.Linear(3, 2))
    model.register_buffer("mask", torch.tensor([True, False]))
    client = TorchClient(model, _data(), cross_entropy)
    received = client.initial()
    assert "mask" not in received
    sent, _, _ = client.train(received, _task())
    assert "mask" not in sent
    assert model.mask.tolist() == [True, False]


def test_fedprox_pulls_towards_the_received_model():
    """One step equals the formula; a larger mu stays closer (Li et al. 2020)."""
    model = nn.Linear(3, 2)
    start = _params(model)
    client = TorchClient(model, _data(), cross_entropy)
    long = {"epochs": 20, "batch_size": 0, "learning_rate": 0.5}
    distances = []
    for mu in (0.0, 0.1, 1.0):
        sent, _, _ = client.train(start, _task(rule=FedProx(mu=mu), **long))
        distances.append(float(np.linalg.norm(sent["weight"] - start["weight"])))
    assert distances[0] > distances[1] > distances[2] > 0
    assert distances[0] == pytest.approx(
        float(np.linalg.norm(client.train(start, _task(**long))[0]["weight"] - start["weight"]))
    )


def test_the_rule_sees_the_received_parameters_as_its_anchor():
    """At every step of the training."""
    anchors, params = [], []

    class Spy(Plain):
        name = "spy"

        def gradient(self, grad, at):
            anchors.append(at.anchor.numpy().copy())
            params.append(at.param.detach().numpy().copy())
            return grad

    model = nn.Linear(3, 2, bias=False)
    start = _params(model)
    TorchClient(model, _data(), cross_entropy).train(start, _task(rule=Spy()))
    assert len(anchors) == 3
    assert all(np.array_equal(anchor, start["weight"]) for anchor in anchors)
    assert not np.array_equal(params[-1], start["weight"])


def test_only_selected_tensors_are_sent():
    """Without keep_local, the other tensors are the server's again in each round."""
    client = TorchClient(_model(), _data(), cross_entropy, send=lambda name: name.startswith("3."))
    start = _params(client.model)
    first, _, _ = client.train(start, _task())
    assert set(first) == {"3.weight", "3.bias"}
    first = {name: value.copy() for name, value in first.items()}
    assert _same(client.train(start, _task(round_=2))[0], first)


@pytest.fixture(params=["memory", "file"])
def keep_local(request, tmp_path):
    """In the process, or in a file."""
    return True if request.param == "memory" else tmp_path / "local.safetensors"


def _personal(keep_local):
    return TorchClient(
        _model(),
        _data(),
        cross_entropy,
        evaluate=_data(),
        send=lambda name: name.startswith("0."),
        keep_local=keep_local,
    )


def test_local_tensors_are_kept_between_rounds(keep_local):
    """The server's values are used only at the start of the run."""
    client = _personal(keep_local)
    start = _params(client.model)
    client.train(start, _task())
    kept = _params(client.model)["3.weight"]
    assert not np.array_equal(kept, start["3.weight"])
    client.evaluate(start, _task(kind=Kind.EVALUATE, round_=2))
    assert np.array_equal(_params(client.model)["3.weight"], kept)
    assert np.array_equal(_params(client.model)["0.weight"], start["0.weight"])


def test_a_repeated_task_gives_the_same_bits_with_local_tensors(keep_local):
    """It starts from the tensors before its first execution, and evaluates them."""
    client = _personal(keep_local)
    start = _params(client.model)
    client.train(start, _task())
    second = _task(round_=2)
    evaluated = client.evaluate(start, second)
    sent = {name: value.copy() for name, value in client.train(start, second)[0].items()}
    kept = _params(client.model)
    assert client.evaluate(start, second) == evaluated
    assert _same(client.train(start, second)[0], sent)
    assert _same(_params(client.model), kept)


def test_a_new_run_starts_from_the_server(keep_local):
    """Another run's tensors are not used."""
    client = _personal(keep_local)
    start = _params(client.model)
    client.train(start, _task())
    client.evaluate(start, _task(run="other", kind=Kind.EVALUATE))
    assert _same(_params(client.model), start)


def test_local_tensors_in_a_file_survive_a_restart(tmp_path):
    """A new client gives the results of the old one."""
    path = tmp_path / "local.safetensors"
    old = _personal(path)
    start = _params(old.model)
    old.train(start, _task())
    new = _personal(str(path))
    task = _task(round_=2)
    assert _same(new.train(start, task)[0], old.train(start, task)[0])
    assert _same(_params(new.model), _params(old.model))


def test_frozen_tensors_need_not_be_in_the_runs_model():
    """A run's model of adapters is trained with frozen tensors of the device."""
    model = _model()
    model[0].requires_grad_(requires_grad=False)
    client = TorchClient(model, _data(), cross_entropy, send=lambda name: name.startswith("3."))
    frozen = _params(model)["0.weight"]
    adapters = {name: value for name, value in _params(model).items() if name.startswith("3.")}
    sent, _, _ = client.train(adapters, _task())
    assert set(sent) == set(adapters)
    assert not np.array_equal(sent["3.weight"], adapters["3.weight"])
    assert np.array_equal(_params(model)["0.weight"], frozen)


def test_a_model_without_a_sent_tensor_is_refused():
    """Before the training, with the tensor's name."""
    client = TorchClient(_model(), _data(), cross_entropy)
    with pytest.raises(UsageError, match=r"lacks 2 tensors.*such as '3\.bias'"):
        client.train({n: v for n, v in _params(_model()).items() if n < "3"}, _task())


def test_buffers_and_integers_are_trained_and_sent_in_their_own_dtypes():
    """Counters of BatchNorm are sent; masks of bool are not."""
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    model.register_buffer("mask", torch.tensor([True, False]))
    client = TorchClient(model, _data(8), cross_entropy)
    start = _params(model)
    start["1.num_batches_tracked"] = np.array(40)
    sent, _, _ = client.train(start, _task())
    assert sent["1.num_batches_tracked"] == 42
    assert sent["1.num_batches_tracked"].dtype == np.int64
    assert not np.array_equal(sent["1.running_mean"], start["1.running_mean"])
    assert "mask" not in sent


def test_training_stops_on_request():
    """Between two steps."""
    client = TorchClient(_model(), _data(), cross_entropy)
    start = _params(client.model)
    stopped = _task()
    stopped.stop()
    sent, num_examples, metrics = client.train(start, stopped)
    assert _same(sent, start)
    assert (num_examples, metrics) == (10, {})


def test_evaluation_gives_loss_and_accuracy():
    """Over all examples and any number of batches, without dropout."""
    x, y = _data(700)
    client = TorchClient(_model(), _data(), cross_entropy, evaluate=(x, y))
    params = _params(client.model)
    num_examples, metrics = client.evaluate(params, _task(kind=Kind.EVALUATE))
    client.model.eval()
    with torch.no_grad():
        scores = client.model(x)
    assert num_examples == 700
    assert metrics["loss"] == pytest.approx(float(cross_entropy(scores, y)), rel=1e-6)
    assert metrics["accuracy"] == float((scores.argmax(1) == y).double().mean())


def test_ignored_targets_do_not_count_in_the_accuracy():
    """Negative class numbers, as in cross_entropy's ignore_index."""
    x, y = _data(6)
    y[:3] = -100
    client = TorchClient(_model(), _data(), cross_entropy, evaluate=(x, y))
    accuracy = client.evaluate(_params(client.model), _task())[1]["accuracy"]
    client.model.eval()
    assert accuracy == float((client.model(x[3:]).argmax(1) == y[3:]).double().mean())


@pytest.mark.parametrize("nothing", [None, _data(0)])
def test_a_client_without_held_out_data_evaluates_nothing(nothing):
    """`can_evaluate` is false."""
    client = TorchClient(_model(), _data(), cross_entropy, evaluate=nothing)
    assert not client.can_evaluate()
    assert client.evaluate(_params(client.model), _task()) == (0, {})


def test_torch_gets_one_thread_by_default():
    """More threads make small models slower."""
    before = torch.get_num_threads()
    try:
        TorchClient(_model(), _data(), cross_entropy, num_threads=2)
        assert torch.get_num_threads() == 2
        TorchClient(_model(), _data(), cross_entropy, num_threads=None)
        assert torch.get_num_threads() == 2
        TorchClient(_model(), _data(), cross_entropy)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


class _Stream(IterableDataset):
    def __iter__(self):
        return iter(())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((torch.zeros(0, 3), torch.zeros(0)), "at least one example"),
        ((torch.zeros(4, 3), torch.zeros(5)), "each of 4 inputs, got 5"),
        (_Stream(), "got _Stream"),
        (DataLoader(_Stream()), "got _Stream"),
    ],
)
def test_invalid_data_is_refused(data, message):
    """When the client is created."""
    with pytest.raises(UsageError, match=message):
        TorchClient(_model(), data, cross_entropy)


def test_a_loss_that_is_not_one_number_is_refused():
    """The error names the remedy."""
    client = TorchClient(_model(), _data(), nn.CrossEntropyLoss(reduction="none"))
    with pytest.raises(UsageError, match="reduction='mean'"):
        client.train(_params(client.model), _task())


def test_the_other_ranks_of_a_site_get_the_whole_task():
    """All of it that has a value of its own."""
    asked = tasks.task(round_=5, training_round=3, steps=2, config={"depth": 3})
    assert orders.decode(orders.encode(RankTask(Kind.TRAIN, asked))).job.task == asked
