"""What the owner's policy forbids does not leave the device; the server gets the reason."""

import itertools
import threading

import numpy as np
import pytest

from fedloom.client.agent.task_run import TaskRun
from fedloom.client.network.connection import Connection
from fedloom.protocol.tensors.container import read_params
from support.agents import Adder, result, submit, until
from support.hostile import PARAMS, scene
from support.patience import PATIENCE_S

pytestmark = pytest.mark.e2e


class Counting(Adder):
    """Counts its trainings and evaluations."""

    def __init__(self):
        super().__init__(step=1.0, num_examples=20)
        self.trained, self.evaluated, self.fails = 0, 0, None
        self.heard = threading.Event()
        self.heard.set()

    def train(self, params, task):
        self.trained += 1
        task.progress(0.5, loss=0.5)
        self.heard.wait(PATIENCE_S)  # else the progress is sent after its training has ended
        if self.fails is not None:
            raise self.fails
        return super().train(params, task)

    def evaluate(self, params, task):
        self.evaluated += 1
        return 20, {"loss": 1.0}


@pytest.fixture(scope="module")
def device(runner, federation, tmp_path_factory):
    """An agent whose policy changes with each test."""
    client = Counting()
    context = scene(federation, tmp_path_factory.mktemp("device"), "device", client)
    opened = runner.run(context.__aenter__())
    opened.client = client
    yield opened
    runner.run(context.__aexit__(None, None, None))


def owner_says(device, text):
    """Write the policy; returns how often the code had trained before."""
    device.agents.configs["device"].policy.write_text(text)
    device.client.fails = None
    device.begin()
    return device.client.trained


def committed(runner, device, **settings):
    """The model after a round of this device alone, and the round's row in the ledger."""

    async def main():
        run = await device.run(**settings)
        await device.federation.ended(run)
        assert device.federation.ledger.run(run).state == "finished"
        return result(device.federation, run), device.federation.ledger.list_rounds(run)[0]

    return runner.run(main())


def kept(runner, device, phase, **settings):
    """Why a round got no update of this device."""

    async def main():
        run = await device.run(**settings)
        reason = await device.phase(run, phase)
        assert not device.federation.ledger.accepted(run, 1)
        await device.stop(run)
        return reason

    return runner.run(main())


def test_a_denied_run_is_declined_before_the_download(runner, device):
    """By its name; the journal has the reason too."""
    trained = owner_says(device, '[runs]\ndeny = ["test*"]')
    assert "denies the run test" in kept(runner, device, "declined")
    assert "denies the run test" in device.journal("declined")[0]["text"]
    assert device.client.trained == trained


def test_tensors_that_never_leave_keep_their_values(runner, device):
    """Only the others are sent and recorded in the journal."""
    owner_says(device, '[leaves]\nnever = ["w"]')
    model, _ = committed(runner, device)
    np.testing.assert_array_equal(model["w"], PARAMS["w"])
    np.testing.assert_array_equal(model["b"], PARAMS["b"] + 1)
    assert device.journal("sent")[0]["tensors"] == ["b"]


def test_nothing_is_trained_if_no_tensor_may_leave(runner, device):
    trained = owner_says(device, '[leaves]\nonly = ["head.*"]')
    assert "keeps every tensor" in kept(runner, device, "failed")
    assert device.client.trained == trained


def test_an_update_of_too_few_examples_is_not_sent(runner, device):
    """An update of enough examples is sent."""
    owner_says(device, "[leaves]\nmin_examples = 21")
    assert "requires 21 examples for updates, got 20" in kept(runner, device, "failed")
    assert not device.journal("sent")
    assert "Sent nothing" in device.journal("declined")[0]["text"]
    owner_says(device, "[leaves]\nmin_examples = 20")
    committed(runner, device)


def test_metrics_of_too_few_examples_are_not_sent(runner, device):
    """The loss of one example would reveal it; the update is sent without metrics."""
    owner_says(device, "[leaves]\nmin_examples = 21")
    evaluated, device.client.num_examples = device.client.evaluated, 21

    async def main():
        run = await device.run(evaluate=True)
        ledger = device.federation.ledger
        await until(lambda: [r for r in ledger.list_rounds(run) if r.state == "committed"])
        assert not (ledger.list_rounds(run)[0].evaluation or {}).get("values")
        reason = await device.phase(run, "failed", number=2)  # that evaluates alone
        assert "21 examples for metrics, got 20" in reason
        await device.stop(run)

    try:
        runner.run(main())
    finally:
        device.client.num_examples = 20
    assert device.client.evaluated == evaluated + 2


def test_an_update_that_is_too_long_is_not_sent(runner, device):
    """By the bytes of its body."""
    owner_says(device, "[leaves]\nmax_bytes = 10")
    assert "at most 10 bytes" in kept(runner, device, "failed")
    assert not list((device.state / "outbox").iterdir())


def test_metrics_are_not_sent_if_they_may_not_leave(runner, device):
    """Metrics of training are left out, and evaluation is declined."""
    owner_says(device, "[leaves]\nmetrics = false")
    evaluated = device.client.evaluated

    async def main():
        run = await device.run(evaluate=True)
        ledger = device.federation.ledger
        await until(lambda: [r for r in ledger.list_rounds(run) if r.state == "committed"])
        assert not (ledger.list_rounds(run)[0].training or {}).get("values")
        assert "no metrics" in await device.declined(run, number=2)  # that evaluates alone
        await device.stop(run)

    runner.run(main())
    assert device.client.evaluated == evaluated
    assert not device.journal("sent")[0]["training"]


def test_progress_has_no_loss_if_metrics_may_not_leave(runner, device, monkeypatch):
    """The fraction is sent; the loss is a metric."""
    sent = []
    real = Connection.send

    async def send(connection, message):
        if message.WhichOneof("kind") == "progress":
            sent.append(message.progress)
            device.client.heard.set()
        await real(connection, message)

    monkeypatch.setattr(Connection, "send", send)
    for text, loss in (("", 0.5), ("[leaves]\nmetrics = false", None)):
        owner_says(device, text)
        sent.clear()
        device.client.heard.clear()
        committed(runner, device)
        assert sent
        assert all((p.loss if p.HasField("loss") else None) == loss for p in sent)


def test_error_text_is_not_sent_if_it_may_not_leave(runner, device):
    """It may quote an example; the kind of the error is sent."""
    owner_says(device, "[leaves]\nerror_messages = false")
    device.client.fails = ValueError("the patient Erika Mustermann")
    assert kept(runner, device, "failed") == "ValueError"
    owner_says(device, "")
    device.client.fails = ValueError("the patient Erika Mustermann")
    assert "Mustermann" in kept(runner, device, "failed")


@pytest.mark.long
def test_the_device_clips_and_adds_noise_itself(runner, device):
    """Even if the run has no privacy; metrics are not sent then."""
    whole = {name: np.ones_like(array) for name, array in PARAMS.items()}
    norm = np.sqrt(sum(array.size for array in whole.values()))
    owner_says(device, '[privacy]\nclip_norm = 0.3\notherwise = "add"')
    model, row = committed(runner, device)
    for name, array in PARAMS.items():
        np.testing.assert_allclose(model[name] - array, 0.3 / norm, rtol=1e-5)
    assert not (row.training or {}).get("values")
    owner_says(device, '[privacy]\nclip_norm = 0.3\nnoise = 2.0\notherwise = "add"')
    noisy, _ = committed(runner, device)
    noise = [(noisy[name] - model[name]).ravel() for name in PARAMS]
    assert all(np.ptp(each) > 1e-4 for each in noise)
    assert np.std(np.concatenate(noise)) > 0.05  # of nine values: of three, one in a hundred is not
    sent = device.journal("sent")[0]
    assert "clipped to norm 0.3, with noise of 0.6 on each value by this device" in sent["text"]


@pytest.mark.long
def test_error_feedback_stays_within_the_norm(runner, device):
    """Otherwise one update in ten would have ten times the allowed norm."""
    owner_says(device, '[privacy]\nclip_norm = 1.0\notherwise = "add"')
    start = {"w": np.zeros((64, 64), np.float32)}

    async def main():
        run = await submit(
            device.federation,
            start,
            rounds=12,
            cohort={"goal": 1, "quorum": 1},
            compression={"up": {"name": "top_k", "fraction": 0.01}},
        )
        await device.federation.ended(run)
        rows = device.federation.ledger.list_models(run=run)
        rows = sorted(rows, key=lambda row: row.round)
        paths = [device.federation.contexts.models.path(row.digest) for row in rows]
        return [read_params(path)["w"].copy() for path in paths]

    models = runner.run(main())
    assert len(models) == 13
    lengths = [float(np.linalg.norm(b - a)) for a, b in itertools.pairwise(models)]
    assert 0 < max(lengths) <= 1.0 + 1e-5


def test_a_run_with_too_little_protection_is_declined(runner, device):
    """The reason tells the operator what to change."""
    owner_says(device, "[privacy]\nclip_norm = 0.3\nnoise = 2.0")
    reason = kept(runner, device, "declined")
    assert "updates clipped to norm 0.3 with noise of 0.6 made on the device" in reason


def test_an_update_is_checked_again_before_it_is_sent(runner, device, monkeypatch):
    """A fault in its creation cannot send forbidden tensors."""
    owner_says(device, '[leaves]\nnever = ["w"]')
    monkeypatch.setattr(TaskRun, "_allowed", lambda _, settled: settled)
    assert "keeps 'w' here" in kept(runner, device, "failed")
    assert not device.journal("sent")
    owner_says(device, '[privacy]\nclip_norm = 0.3\notherwise = "add"')
    monkeypatch.setattr(TaskRun, "_protected", lambda _, settled, manifest: settled)
    assert "a norm of at most 0.3; the update has 3" in kept(runner, device, "failed")
    assert not device.journal("sent")


def test_rounds_per_day_are_counted(runner, device):
    """Also those before the limit was set."""
    owner_says(device, "")
    committed(runner, device)
    owner_says(device, "[runs]\nrounds_per_day = 1")
    assert "1 round a day" in kept(runner, device, "declined")
    owner_says(device, "")
    runner.run(device.takes_part())


def test_enrolment_writes_a_policy_that_restricts_nothing(device):
    """With comments; client.toml names the file."""
    config = device.agents.configs["device"]
    assert config.policy == config.state_dir.parent / "policy.toml"
    assert "policy.toml" in (config.state_dir.parent / "client.toml").read_text()
