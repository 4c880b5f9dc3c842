"""HFClient: transformers' Trainer in rounds, compared with loops written by hand."""

import copy
import dataclasses
import shutil

import numpy as np
import pytest

pytest.importorskip("transformers", reason="needs transformers and peft: make hf")

import peft
import torch
from transformers import GPT2LMHeadModel, Trainer, TrainingArguments

from fedloom.cli.operator.peft_folder import ADAPTERS, check, read_config
from fedloom.client.hf import HFClient, base_digest, patch, save_pretrained
from fedloom.client.testing import rounds
from fedloom.protocol.errors import UsageError
from fedloom.protocol.tensors.container import write_file
from support import tasks
from support.tiny_gpt import LENGTH, RATE, adapted, arguments, examples, gpt, run_of

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of peft beside transformers 5


def by_hand(models, sets, num_rounds, batch_size, epochs):
    """FedAvg of adapters with AdamW, from torch alone."""

    def trained(model):
        return {n: p for n, p in model.named_parameters() if p.requires_grad}

    shared = {n: p.detach().clone() for n, p in trained(models[0]).items()}
    for _ in range(num_rounds):
        sums = {n: torch.zeros_like(p, dtype=torch.float64) for n, p in shared.items()}
        for model, data in zip(models, sets, strict=True):
            own = trained(model)
            with torch.no_grad():
                for name, param in own.items():
                    param.copy_(shared[name])
            optimizer = torch.optim.AdamW(own.values(), lr=RATE, weight_decay=0.0)
            for _ in range(epochs):
                for at in range(0, len(data), batch_size):
                    ids = torch.stack([row["input_ids"] for row in data[at : at + batch_size]])
                    optimizer.zero_grad()
                    model(input_ids=ids, labels=ids).loss.backward()
                    torch.nn.utils.clip_grad_norm_(own.values(), 1.0)
                    optimizer.step()
            for name, param in own.items():
                sums[name] += len(data) * param.detach().double()
        total = sum(map(len, sets))
        shared = {n: (each / total).float() for n, each in sums.items()}
    return shared


def test_two_clients_over_five_rounds_equal_a_loop_by_hand(tmp_path):
    """To 1e-6, with adapters, unequal numbers of examples and a last batch that is smaller."""
    sets = [examples(6, 1), examples(9, 2)]
    start = adapted()
    clients = [
        HFClient(copy.deepcopy(start), arguments(tmp_path / str(i)), data)
        for i, data in enumerate(sets)
    ]
    expected = by_hand([copy.deepcopy(start) for _ in sets], sets, 5, 4, 2)
    played = rounds(clients, num_rounds=5, run=run_of(epochs=2, batch_size=4))
    assert len(played.params) == len(expected) == 4
    moved = 0.0
    for name, values in expected.items():
        mine = played.params[name.replace(".default.", ".")]
        np.testing.assert_allclose(mine, values.numpy(), atol=1e-6, rtol=0)
        moved = max(moved, float(np.abs(mine).max()))
    assert moved > 0.01
    assert played.rounds[-1].training["loss"] < played.rounds[0].training["loss"]


def test_only_adapters_travel(tmp_path):
    """By peft's own names; bytes up are those of the adapters, and their headers."""
    model = adapted()
    client = HFClient(model, arguments(tmp_path), examples(4, 1))
    start = client.initial()
    assert set(start) == set(peft.get_peft_model_state_dict(model))
    assert all(".lora_A." in name or ".lora_B." in name for name in start)
    played = rounds(client, num_rounds=1, run=run_of(steps=1, batch_size=4))
    adapters = sum(array.nbytes for array in start.values())
    every = sum(param.nbytes for param in model.parameters())
    assert adapters <= played.rounds[0].update_bytes <= adapters + 100 * len(start) < every / 10


def test_without_adapters_what_is_trained_travels_and_tied_tensors_once(tmp_path):
    model = gpt()
    for param in model.transformer.h[0].parameters():
        param.requires_grad_(False)
    client = HFClient(model, arguments(tmp_path), examples(4, 1))
    names = set(client.initial())
    assert "transformer.wte.weight" in names
    assert "lm_head.weight" not in names  # tied to it
    assert not any(name.startswith("transformer.h.0.") for name in names)
    frozen = copy.deepcopy(model.transformer.h[0].state_dict())
    played = rounds(client, num_rounds=2, run=run_of(steps=2, batch_size=4))
    assert set(played.params) == names
    torch.testing.assert_close(model.transformer.h[0].state_dict(), frozen, rtol=0, atol=0)
    assert model.lm_head.weight is model.transformer.wte.weight


def test_a_batch_is_the_examples_of_a_step(tmp_path):
    """Gradient accumulation has the same steps in less memory; it must divide a batch."""
    models = []
    for steps in (1, 4):
        client = HFClient(
            adapted(),
            arguments(tmp_path, gradient_accumulation_steps=steps, max_grad_norm=0.0),
            examples(8, 1),
        )
        models.append(rounds(client, num_rounds=1, run=run_of(epochs=2, batch_size=4)).params)
        assert client.trainer.state.global_step == 4
    for name, values in models[0].items():
        np.testing.assert_allclose(values, models[1][name], atol=1e-5)
    with pytest.raises(UsageError, match="gradient_accumulation_steps = 4 divides, got 6"):
        rounds(client, num_rounds=1, run=run_of(epochs=1, batch_size=6))


def test_the_schedule_runs_over_all_rounds(tmp_path):
    """Linear with warm-up over 3 rounds of 2 steps, as one training of 6 steps has it."""
    seen = []

    class Recording(Trainer):
        def training_step(self, *args, **kwargs):
            seen.append(self.optimizer.param_groups[0]["lr"])
            return super().training_step(*args, **kwargs)

    def client(**more):
        args = arguments(tmp_path, warmup_steps=2, lr_scheduler_type="linear")
        return HFClient(adapted(), args, examples(4, 1), trainer_class=Recording, **more)

    rounds(client(rounds=3), num_rounds=3, run=run_of(steps=2, batch_size=4))
    np.testing.assert_allclose(seen, [RATE * r for r in (0, 0.5, 1, 0.75, 0.5, 0.25)])
    seen.clear()
    rounds(client(), num_rounds=2, run=run_of(steps=2, batch_size=4))
    assert seen == [RATE] * 4


def test_a_kept_optimizer_goes_on_where_it_stopped(tmp_path):
    """Alone, three rounds of two steps of AdamW are one training of six; anew in each, not."""
    whole, kept, anew = (
        HFClient(adapted(), arguments(tmp_path), examples(4, 1), keep_optimizer=folder)
        for folder in (None, tmp_path / "kept", None)
    )
    six = rounds(whole, num_rounds=1, run=run_of(steps=6, batch_size=4)).params
    parts = rounds(kept, num_rounds=3, run=run_of(steps=2, batch_size=4)).params
    reset = rounds(anew, num_rounds=3, run=run_of(steps=2, batch_size=4)).params
    for name, values in six.items():
        np.testing.assert_allclose(parts[name], values, atol=1e-6, rtol=0)
    assert max(float(np.abs(reset[name] - values).max()) for name, values in six.items()) > 1e-3
    assert len(list((tmp_path / "kept").glob("*.pt"))) == 2


def test_a_kept_optimizer_and_a_clip_norm_leave_the_next_round_its_own_settings(tmp_path):
    """The rate of a round is the run's, whatever the state of the optimizer was stored with."""
    seen = []

    class Recording(Trainer):
        def training_step(self, *args, **kwargs):
            seen.append((self.optimizer.param_groups[0]["lr"], self.args.max_grad_norm))
            return super().training_step(*args, **kwargs)

    client = HFClient(
        adapted(), arguments(tmp_path), examples(4, 1),
        trainer_class=Recording, keep_optimizer=tmp_path / "kept",
    )  # fmt: skip
    start = client.initial()
    for number, rate, norm in ((1, 0.5, 0.25), (2, 0.125, None)):
        task = tasks.task(steps=1, batch_size=4, round_=number, learning_rate=rate, clip_norm=norm)
        client.train(start, task)
    assert seen == [(0.5, 0.25), (0.125, 1.0)]


def test_a_repeated_task_begins_from_the_same_optimizer(tmp_path):
    client = HFClient(
        adapted(), arguments(tmp_path), examples(4, 1), keep_optimizer=tmp_path / "kept"
    )
    start = client.initial()
    first = tasks.task(steps=2, batch_size=4, round_=1)
    second = tasks.task(steps=2, batch_size=4, round_=2)
    client.train(start, first)
    once, _, _ = client.train(start, second)
    again, _, _ = client.train(start, second)
    assert all(np.array_equal(once[name], again[name]) for name in once)


def test_a_trainer_becomes_a_client_in_one_line(tmp_path):
    """Repeating a task gives the same bits, also with the trainer's own random order."""
    args = TrainingArguments(str(tmp_path), report_to="none", use_cpu=True, disable_tqdm=True)
    client = patch(Trainer(adapted(), args, train_dataset=examples(9, 3)))
    start, task = client.initial(), tasks.task(epochs=2, batch_size=4, learning_rate=RATE)
    first, count, metrics = client.train(start, task)
    again, _, _ = client.train(start, task)
    other, _, _ = client.train(start, dataclasses.replace(task, seed=2))
    assert count == 9
    assert set(metrics) == {"loss"}
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not all(np.array_equal(first[name], other[name]) for name in first)


def test_evaluation_gives_the_model_s_measures_alone(tmp_path):
    client = HFClient(
        adapted(), arguments(tmp_path), examples(4, 1), examples(5, 2),
        compute_metrics=lambda found: {"top": float((found.predictions.argmax(-1) >= 0).mean())},
    )  # fmt: skip
    count, metrics = client.evaluate(client.initial(), tasks.task())
    assert count == 5
    assert set(metrics) == {"loss", "top"}
    ids = torch.stack([row["input_ids"] for row in examples(5, 2)])
    with torch.no_grad():
        expected = client.model.eval()(input_ids=ids, labels=ids).loss
    assert metrics["loss"] == pytest.approx(float(expected), rel=1e-5)


def test_progress_and_a_stop_reach_the_trainer(tmp_path):
    client = HFClient(adapted(), arguments(tmp_path), examples(8, 1))
    task, seen = tasks.task(epochs=50, batch_size=4), []

    def heard(note):
        seen.append(note.fraction)
        task.stop()

    with task.reporting(heard):
        client.train(client.initial(), task)
    assert seen == [0.01]
    assert client.trainer.state.global_step == 1


def test_a_device_with_another_base_model_refuses(tmp_path):
    """The digest is of what stays here: training does not change it."""
    client = HFClient(adapted(), arguments(tmp_path), examples(4, 1))
    task = tasks.task(steps=1, batch_size=4, config={"base": client.base})
    client.train(client.initial(), task)
    assert base_digest(client.model) == client.base
    other = HFClient(adapted(seed=5), arguments(tmp_path), examples(4, 1))
    with pytest.raises(UsageError, match="Expected the base model"):
        other.train(client.initial(), task)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"patience": 2}, "train.patience"),
        ({"only": ("*c_attn*0*",)}, "train.only"),
        ({"tensor_share": 0.5}, "tensor_share"),
    ],
)
def test_what_the_trainer_cannot_follow_is_refused(tmp_path, change, told):
    client = HFClient(adapted(), arguments(tmp_path), examples(4, 1))
    with pytest.raises(UsageError, match=told.replace("*", ".")):
        client.train(client.initial(), tasks.task(batch_size=4, **change))


def test_trainers_that_cannot_train_in_rounds_are_refused(tmp_path):
    model = gpt()
    used = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(UsageError, match="optimizers="):
        HFClient(model, arguments(tmp_path), examples(4, 1), optimizers=(used, None))


def test_parameters_that_are_trained_and_not_sent_are_refused(tmp_path):
    model = adapted()
    model.base_model.model.transformer.ln_f.weight.requires_grad_(True)
    with pytest.raises(UsageError, match=r"ln_f.weight.*never sent"):
        HFClient(model, arguments(tmp_path), examples(4, 1))


def test_modules_to_save_and_an_adapter_of_another_name_travel(tmp_path):
    config = peft.LoraConfig(
        r=2, target_modules=["c_attn"], fan_in_fan_out=True, modules_to_save=["ln_f"]
    )
    model = peft.get_peft_model(gpt(), config, adapter_name="ward")
    client = HFClient(model, arguments(tmp_path), examples(4, 1))
    start = client.initial()
    assert len(start) == 6
    played = rounds(client, num_rounds=1, run=run_of(steps=2, batch_size=4))
    assert not any(np.array_equal(played.params[name], start[name]) for name in start)
    trained = [p for p in model.parameters() if p.requires_grad]
    mine = client.initial()
    assert sum(p.numel() for p in trained) == sum(array.size for array in mine.values())


def test_a_run_s_model_becomes_an_adapter_that_peft_loads(tmp_path):
    """And a merged model with the same outputs."""
    client = HFClient(adapted(), arguments(tmp_path), examples(6, 1))
    played = rounds(client, num_rounds=2, run=run_of(steps=3, batch_size=6))
    write_file(tmp_path / "model.safetensors", played.params)
    save_pretrained(adapted(), tmp_path / "model.safetensors", tmp_path / "adapter")
    loaded = peft.PeftModel.from_pretrained(gpt(), tmp_path / "adapter")
    given = tmp_path / "given"
    adapted().peft_config["default"].save_pretrained(given)
    check(read_config(given), tmp_path / "model.safetensors")  # `model export --peft` does this
    shutil.copy(tmp_path / "model.safetensors", given / ADAPTERS)
    beside = peft.PeftModel.from_pretrained(gpt(), given)
    save_pretrained(adapted(), tmp_path / "model.safetensors", tmp_path / "whole", merged=True)
    merged = GPT2LMHeadModel.from_pretrained(tmp_path / "whole")
    ids = torch.arange(LENGTH)[None]
    with torch.no_grad():
        wanted = client.model.eval()(ids).logits
        torch.testing.assert_close(loaded.eval()(ids).logits, wanted)
        torch.testing.assert_close(beside.eval()(ids).logits, wanted)
        torch.testing.assert_close(merged.eval()(ids).logits, wanted)
        assert not torch.allclose(gpt().eval()(ids).logits, wanted, atol=1e-3)


def test_a_model_of_other_adapters_is_refused(tmp_path):
    client = HFClient(adapted(), arguments(tmp_path), examples(4, 1))
    wrong = {name: values[:1] for name, values in client.initial().items()}
    with pytest.raises(UsageError, match="4 of another shape"):
        client.train(wrong, tasks.task(batch_size=4))
