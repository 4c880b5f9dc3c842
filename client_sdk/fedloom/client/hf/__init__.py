"""Clients that train with Hugging Face's `Trainer`, and send peft's adapters alone.

    trainer = Trainer(model, args, train_dataset=examples)
    client = patch(trainer)

`fedloom client run train.py:client` then trains in rounds. The model's adapters travel by peft's
own names; the base model stays on the device. Without adapters, what is trained travels. Importing
this imports transformers; importing `fedloom.client` does not. Guide: docs/huggingface.md.
"""

from fedloom.client.hf.client import HFClient, TrainerClient, patch
from fedloom.client.hf.tensors import base_digest, save_pretrained

__all__ = ["HFClient", "TrainerClient", "base_digest", "patch", "save_pretrained"]
