"""A Trainer's settings in rounds: each counts as it is, follows the run, or is refused by name."""

import numpy as np
import pytest

pytest.importorskip("transformers", reason="needs transformers and peft: make hf")

import peft
import torch
from torch.utils.data import DataLoader, IterableDataset
from transformers import (
    EarlyStoppingCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from fedloom.client.hf import HFClient, base_digest, patch
from fedloom.client.testing import rounds
from fedloom.protocol.errors import UsageError
from support import tasks
from support.tiny_gpt import RATE, adapted, arguments, examples, gpt, run_of

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of peft beside transformers 5


def shuffled(folder, **settings):
    """Arguments with the Trainer's own order of the examples."""
    return TrainingArguments(
        str(folder), report_to="none", use_cpu=True, disable_tqdm=True, **settings
    )


def seen(of):
    """Trainers of a class that note the second word of each example, batch by batch."""

    class Noting(of):
        batches = ()

        def training_step(self, model, inputs, *args, **kwargs):
            self.batches = (*self.batches, tuple(inputs["input_ids"][:, 1].tolist()))
            return super().training_step(model, inputs, *args, **kwargs)

    return Noting


# ---- the number of examples --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "accumulation", "drops", "expected"),
    [(10, 1, False, (10, 3)), (10, 2, False, (10, 3)), (10, 2, True, (10, 3)),
     (11, 2, True, (10, 3)), (11, 1, True, (8, 2)), (9, 4, False, (9, 3))],
)  # fmt: skip
def test_the_examples_of_an_epoch_are_those_that_the_trainer_takes(
    tmp_path, size, accumulation, drops, expected
):
    """And its steps."""
    args = arguments(tmp_path, gradient_accumulation_steps=accumulation, dataloader_drop_last=drops)
    client = HFClient(adapted(), args, examples(size, 1), trainer_class=seen(Trainer))
    _, count, _ = client.train(client.initial(), tasks.task(epochs=1, batch_size=4))
    assert (count, client.trainer.state.global_step) == expected
    assert count == sum(map(len, client.trainer.batches))


def test_a_loader_of_one_s_own_is_counted_by_its_sampler(tmp_path):
    class Own(Trainer):
        def _get_train_sampler(self, *_):
            return [1, 3, 5]

    client = HFClient(adapted(), arguments(tmp_path), examples(9, 1), trainer_class=seen(Own))
    _, count, _ = client.train(client.initial(), tasks.task(epochs=2, batch_size=2))
    assert count == 3
    drawn = [row["input_ids"][1].item() for row in examples(9, 1)]
    assert client.trainer.batches == ((drawn[1], drawn[3]), (drawn[5],)) * 2


@pytest.mark.parametrize(
    ("loading", "told"),
    [
        ({"batch_size": 3}, "batches of 2, as the run .*, got 3"),
        ({"batch_sampler": [[0], [1, 2]]}, "one size, got list"),
    ],
)
def test_a_loader_that_does_not_follow_the_run_is_refused(tmp_path, loading, told):
    class Own(Trainer):
        def get_train_dataloader(self):
            return self.accelerator.prepare(
                DataLoader(self.train_dataset, collate_fn=self.data_collator, **loading)
            )

    client = HFClient(adapted(), arguments(tmp_path), examples(6, 1), trainer_class=Own)
    with pytest.raises(UsageError, match=told):
        client.train(client.initial(), tasks.task(epochs=1, batch_size=2))


class Stream(IterableDataset):
    def __len__(self):
        return 5

    def __iter__(self):
        return iter(examples(5, 1))


def test_a_stream_with_a_length_is_counted(tmp_path):
    client = HFClient(adapted(), arguments(tmp_path), Stream(), trainer_class=seen(Trainer))
    _, count, _ = client.train(client.initial(), tasks.task(epochs=2, batch_size=2))
    assert count == 5
    assert [len(batch) for batch in client.trainer.batches] == [2, 2, 1] * 2


@pytest.mark.parametrize(("size", "settings"), [(0, {}), (3, {"dataloader_drop_last": True})])
def test_a_training_without_a_batch_is_refused(tmp_path, size, settings):
    client = HFClient(adapted(), arguments(tmp_path, **settings), examples(size, 1))
    with pytest.raises(UsageError, match=f"a batch of examples, got none: .* has {size}"):
        client.train(client.initial(), tasks.task(epochs=1, batch_size=4))


def test_an_evaluation_counts_what_it_evaluated(tmp_path):
    """`dataloader_drop_last` drops examples of an evaluation, too."""
    args = arguments(tmp_path, dataloader_drop_last=True, per_device_eval_batch_size=4)
    held_out = examples(6, 2)
    clients = [HFClient(adapted(), args, None, data) for data in (held_out, held_out[:4])]
    found, expected = (each.evaluate(each.initial(), tasks.task()) for each in clients)
    assert found == expected
    assert found[0] == 4
    none = HFClient(adapted(), args, None, held_out[:3])
    assert none.evaluate(none.initial(), tasks.task()) == (0, {})


def test_an_evaluation_of_one_s_own_counts_the_data_set(tmp_path):
    class Own(Trainer):
        def evaluate(self, *_args, **_named):
            return {"eval_bleu": 0.5}

    client = HFClient(adapted(), arguments(tmp_path), None, examples(3, 1), trainer_class=Own)
    assert client.evaluate(client.initial(), tasks.task()) == (3, {"bleu": 0.5})


def test_a_metric_of_one_s_own_may_end_like_a_speed(tmp_path):
    client = HFClient(
        adapted(), arguments(tmp_path), None, examples(4, 1),
        compute_metrics=lambda _found: {"words_per_epoch": 3.0, "runtime_share": 0.5},
    )  # fmt: skip
    _, metrics = client.evaluate(client.initial(), tasks.task())
    assert metrics.keys() == {"loss", "words_per_epoch", "runtime_share"}


# ---- the run's settings ------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"data_seed": 7}])
def test_the_order_follows_the_task_s_seed(tmp_path, settings):
    """Whatever `data_seed` the trainer was made with."""
    client = HFClient(
        adapted(), shuffled(tmp_path, **settings), examples(9, 1), trainer_class=seen(Trainer)
    )
    orders = []
    for seed in (1, 2, 1):
        client.trainer.batches = ()
        client.train(client.initial(), tasks.task(epochs=2, batch_size=4, seed=seed))
        orders.append(client.trainer.batches)
    assert orders[0] == orders[2] != orders[1]


def test_examples_grouped_by_length_are_those_of_the_trainer_alone(tmp_path):
    """All of them, in the trainer's own batches of like lengths for the task's seed."""
    rows = enumerate(examples(32, 1))
    data = [{name: values[: 3 + i % 5] for name, values in row.items()} for i, row in rows]

    def padded(rows):
        return {
            name: torch.nn.utils.rnn.pad_sequence(
                [row[name] for row in rows], batch_first=True, padding_value=fill
            )
            for name, fill in (("input_ids", 0), ("labels", -100))
        }

    def made(**settings):
        args = shuffled(tmp_path, train_sampling_strategy="group_by_length", **settings)
        return seen(Trainer)(adapted(), args, train_dataset=data, data_collator=padded)

    alone = made(num_train_epochs=1, per_device_train_batch_size=4)
    set_seed(5)
    alone.train()
    client = patch(made())
    _, count, _ = client.train(client.initial(), tasks.task(epochs=1, batch_size=4, seed=5))
    assert count == sum(map(len, client.trainer.batches)) == 32
    assert client.trainer.batches == alone.batches


def test_an_optimizer_at_another_rate_than_the_run_s_is_refused(tmp_path):
    client = HFClient(
        adapted(), arguments(tmp_path), examples(4, 1),
        optimizer_cls_and_kwargs=(torch.optim.SGD, {"lr": 0.5}),
    )  # fmt: skip
    with pytest.raises(UsageError, match=r"the run's learning rate 0\.1, got SGD with 0\.5"):
        client.train(client.initial(), tasks.task(batch_size=4))
    client.train(client.initial(), tasks.task(batch_size=4, learning_rate=0.5))


def test_a_schedule_that_follows_the_loss_is_refused_over_rounds(tmp_path):
    args = arguments(tmp_path, lr_scheduler_type="reduce_lr_on_plateau", eval_strategy="steps")
    client = HFClient(adapted(), args, examples(4, 1), examples(4, 1), rounds=3)
    with pytest.raises(UsageError, match="got reduce_lr_on_plateau, which follows the loss"):
        client.train(client.initial(), tasks.task(batch_size=4))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"bf16_full_eval": True}, "bf16_full_eval"),
        ({"train_sampling_strategy": "batch_rebalance"}, "batch_rebalance"),
    ],
)
def test_settings_that_would_be_wrong_in_rounds_are_refused(tmp_path, settings, told):
    with pytest.raises(UsageError, match=told):
        HFClient(adapted(), shuffled(tmp_path, **settings), examples(4, 1))


def test_early_stopping_that_counts_over_rounds_is_refused(tmp_path):
    """Its count of evaluations in vain would shorten all rounds after the first."""
    with pytest.raises(UsageError, match="EarlyStoppingCallback"):
        HFClient(
            adapted(), arguments(tmp_path), examples(4, 1), callbacks=[EarlyStoppingCallback()]
        )


def test_an_evaluation_without_a_loss_is_counted(tmp_path):
    """As of a model whose labels the trainer does not know."""
    unlabelled = [{"input_ids": row["input_ids"]} for row in examples(5, 2)]
    client = HFClient(adapted(), arguments(tmp_path), None, unlabelled)
    assert client.evaluate(client.initial(), tasks.task()) == (5, {})


def test_several_sets_for_evaluation_are_refused(tmp_path):
    with pytest.raises(UsageError, match="several parts"):
        HFClient(adapted(), arguments(tmp_path), None, {"a": examples(4, 1), "b": examples(2, 2)})


def test_label_smoothing_and_weight_decay_count_as_they_are(tmp_path):
    """A round is what the trainer does alone, with the decay on weights and not on biases."""
    model, settings = gpt(), {"label_smoothing_factor": 0.3, "weight_decay": 0.5}
    alone = Trainer(
        gpt(), train_dataset=examples(8, 1),
        args=arguments(
            tmp_path, learning_rate=RATE, num_train_epochs=2, per_device_train_batch_size=4,
            lr_scheduler_type="constant", **settings,
        ),
    )  # fmt: skip
    assert alone.create_optimizer().param_groups[1]["weight_decay"] == 0.0
    alone.optimizer = None
    alone.train()
    client = HFClient(model, arguments(tmp_path, **settings), examples(8, 1))
    found, _, _ = client.train(
        client.initial(), tasks.task(epochs=2, batch_size=4, learning_rate=RATE)
    )
    state = alone.model.state_dict()
    assert all(np.array_equal(values, state[name]) for name, values in found.items())


# ---- what stays on the device ------------------------------------------------------------------


class Normed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4)

    def forward(self, x, labels):
        scores = self.norm(self.linear(x))
        return {"loss": torch.nn.functional.cross_entropy(scores, labels), "logits": scores}


def test_training_adapters_leaves_the_base_model_s_statistics(tmp_path):
    """BatchNorm's would move on this device alone."""
    torch.manual_seed(0)
    model = peft.get_peft_model(Normed(), peft.LoraConfig(r=2, target_modules=["linear"]))
    data = [{"x": torch.randn(8), "labels": torch.tensor(i % 4)} for i in range(8)]
    client = HFClient(model, arguments(tmp_path, label_names=["labels"]), data, data)
    start, before = client.initial(), client.base
    first = client.evaluate(start, tasks.task())
    client.train(start, tasks.task(epochs=2, batch_size=4))
    assert base_digest(client.model) == before
    assert client.evaluate(start, tasks.task()) == first


def test_the_digest_tells_adapters_of_another_scale():
    """`lora_alpha` is in no tensor, and the same adapters change the base model otherwise."""
    other = peft.LoraConfig(r=2, lora_alpha=8, target_modules=["c_attn"], fan_in_fan_out=True)
    assert base_digest(adapted()) == base_digest(adapted())
    assert base_digest(peft.get_peft_model(gpt(), other)) != base_digest(adapted())


def test_a_script_s_own_training_keeps_its_checkpoints(tmp_path):
    trainer = Trainer(
        adapted(), shuffled(tmp_path, save_strategy="epoch", num_train_epochs=1),
        train_dataset=examples(4, 1),
    )  # fmt: skip
    client = patch(trainer)
    trainer.train()
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-1"]
    trainer.optimizer = None
    client.train(client.initial(), tasks.task(steps=3, batch_size=4))
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-1"]


# ---- bf16, metrics and callbacks, round by round -----------------------------------------------


def test_bf16_rounds_equal_the_trainer_s_own(tmp_path):
    """The forward pass is in 16 bits; adapters, optimizer and updates stay in 32."""
    settings = {"bf16": True, "lr_scheduler_type": "constant"}
    alone = Trainer(
        adapted(), train_dataset=examples(8, 1),
        args=arguments(
            tmp_path, learning_rate=RATE, num_train_epochs=2, per_device_train_batch_size=4,
            **settings,
        ),
    )  # fmt: skip
    alone.train()
    client, full = (
        HFClient(adapted(), arguments(tmp_path, **given), examples(8, 1), examples(4, 2))
        for given in (settings, {})
    )
    one, other = (
        rounds(each, num_rounds=1, run=run_of(epochs=2, batch_size=4)) for each in (client, full)
    )
    trained = peft.get_peft_model_state_dict(alone.model)
    for name, values in one.params.items():
        assert values.dtype == np.float32
        np.testing.assert_allclose(values, trained[name].numpy(), atol=1e-8, rtol=0)
    assert max(np.abs(values - other.params[n]).max() for n, values in one.params.items()) > 1e-5
    assert one.rounds[0].training["loss"] == pytest.approx(
        other.rounds[0].training["loss"], rel=0.02
    )


def test_metrics_and_callbacks_come_in_each_round(tmp_path):
    heard = []

    class Mine(TrainerCallback):
        def on_train_begin(self, *_, **__):
            heard.append("begin")

        def on_step_end(self, args, state, *_, **__):
            heard.append(state.global_step)

        def on_evaluate(self, *_, metrics, **__):
            heard.append(round(metrics["eval_highest"], 3))

    client = HFClient(
        adapted(), arguments(tmp_path), examples(4, 1), examples(6, 2), callbacks=[Mine()],
        compute_metrics=lambda found: {
            "highest": float(found.predictions.max())
        },
    )  # fmt: skip
    played = rounds(client, num_rounds=3, run=run_of(steps=2, batch_size=4))
    measured = [each.evaluation["highest"] for each in played.rounds]
    assert len(set(measured)) > 1
    assert [each for each in heard if each in {"begin", 1, 2}] == ["begin", 1, 2] * 3
    assert [each for each in heard if isinstance(each, float)][:3] == pytest.approx(
        measured, abs=1e-3
    )
    losses = [each.evaluation["loss"] for each in played.rounds]
    assert len(set(losses)) == 3


def test_noise_of_a_training_that_failed_does_not_stay(tmp_path):
    """NEFTune's: it was added twice in the next training."""

    class Failing(TrainerCallback):
        fails = True

        def on_step_end(self, *_, **__):
            if self.fails:
                self.fails = False
                raise RuntimeError("no more")

    made = {"args": arguments(tmp_path, neftune_noise_alpha=5.0), "train_dataset": examples(4, 1)}
    good, bad = (HFClient(adapted(), **made, callbacks=c) for c in ([], [Failing()]))
    start, task = good.initial(), tasks.task(steps=2, batch_size=4)
    with pytest.raises(RuntimeError, match="no more"):
        bad.train(start, task)
    (found, _, _), (expected, _, _) = (each.train(start, task) for each in (bad, good))
    assert all(np.array_equal(values, expected[name]) for name, values in found.items())
