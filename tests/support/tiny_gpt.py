"""A tiny GPT from a configuration, examples and arguments, for tests of `fedloom.client.hf`."""

import peft
import torch
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments

WORDS, LENGTH = 48, 8
RATE = 1e-2
"""Of the runs."""


def gpt(seed=0):
    """A tiny GPT; the same values for the same seed."""
    torch.manual_seed(seed)
    settings = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=WORDS,
            n_positions=16,
            n_embd=16,
            n_layer=2,
            n_head=2,
            bos_token_id=None,
            eos_token_id=None,
            **settings,
        )
    )


def adapted(seed=0):
    """A tiny GPT with adapters."""
    model = gpt(seed)
    torch.manual_seed(seed + 1)
    return peft.get_peft_model(
        model, peft.LoraConfig(r=2, lora_alpha=4, target_modules=["c_attn"], fan_in_fan_out=True)
    )


def examples(count, seed):
    """Random words; the first is no target, since transformers 5.23 counts it as one for peft."""
    drawn = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, WORDS, (count, LENGTH), generator=drawn)
    first = torch.arange(LENGTH) == 0
    return [{"input_ids": row, "labels": row.masked_fill(first, -100)} for row in ids]


def arguments(folder, **settings):
    return TrainingArguments(
        str(folder), report_to="none", use_cpu=True, disable_tqdm=True,
        train_sampling_strategy="sequential", **settings,
    )  # fmt: skip


def run_of(**train):
    return {"train": {"learning_rate": RATE, **train}}
