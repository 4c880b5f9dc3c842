"""TRL's SFTTrainer as a client, on text and with a tokenizer that are made here."""

from itertools import chain

import numpy as np
import pytest

pytest.importorskip("trl", reason="needs TRL: make hf")

import peft
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

from fedloom.client.hf import patch
from fedloom.client.testing import rounds
from support.tiny_gpt import run_of

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")

SENTENCES = [
    [f"the {what} of the {who} is {how}" for what in ("crown", "sword") for how in ("lost", "old")]
    for who in ("king", "queen")
]
"""Of each device."""
SETTINGS = {"epochs": 2, "batch_size": 2}


def tokenizer():
    """Words of the text above."""
    words = Tokenizer(models.WordLevel(unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["<unk>", "<pad>", "<end>"]
    words.train_from_iterator(
        chain.from_iterable(SENTENCES), trainers.WordLevelTrainer(special_tokens=special)
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", pad_token="<pad>", eos_token="<end>"
    )


def sft(folder, sentences, **settings):
    """A trainer of a tiny GPT's adapters; the same values each time."""
    words = tokenizer()
    torch.manual_seed(0)
    dropped = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    config = GPT2Config(
        vocab_size=len(words), n_positions=16, n_embd=16, n_layer=2, n_head=2,
        bos_token_id=None, eos_token_id=words.eos_token_id, **dropped,
    )  # fmt: skip
    return SFTTrainer(
        GPT2LMHeadModel(config),
        SFTConfig(
            str(folder), report_to="none", use_cpu=True, bf16=False, disable_tqdm=True,
            train_sampling_strategy="sequential", **settings,
        ),
        train_dataset=Dataset.from_dict({"text": sentences}),
        processing_class=words,
        peft_config=peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True),
    )  # fmt: skip


def alone(folder, num_rounds):
    """The mean of what trainers alone make of it, round by round."""
    shared, losses = None, []
    for _ in range(num_rounds):
        made = []
        for sentences in SENTENCES:
            trainer = sft(
                folder, sentences, learning_rate=1e-2, num_train_epochs=2,
                per_device_train_batch_size=2, lr_scheduler_type="constant",
            )  # fmt: skip
            if shared is not None:
                peft.set_peft_model_state_dict(trainer.model, shared)
            losses.append(trainer.train().training_loss)
            made.append(peft.get_peft_model_state_dict(trainer.model))
        shared = {name: (made[0][name] + made[1][name]) / 2 for name in made[0]}
    return shared, losses


def test_rounds_equal_those_of_trainers_alone(tmp_path):
    """Two devices, to 1e-6, and the loss falls."""
    clients = [patch(sft(tmp_path / str(i), each)) for i, each in enumerate(SENTENCES)]
    played = rounds(clients, num_rounds=2, run=run_of(**SETTINGS))
    expected, losses = alone(tmp_path / "alone", 2)
    assert played.params.keys() == expected.keys()
    start = clients[0].initial()
    for name, values in expected.items():
        np.testing.assert_allclose(played.params[name], values.numpy(), atol=1e-6, rtol=0)
        assert not np.array_equal(played.params[name], start[name])
    seen = [each.training["loss"] for each in played.rounds]
    assert seen == pytest.approx([sum(losses[:2]) / 2, sum(losses[2:]) / 2])
    assert seen[1] < seen[0]
