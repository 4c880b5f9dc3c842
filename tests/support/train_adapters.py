import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from fedloom.client.hf import patch

torch.manual_seed(0)
config = GPT2Config(vocab_size=48, n_positions=16, n_embd=16, n_layer=2, n_head=2)
lora = LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True)
ids = torch.randint(0, 48, (12, 8), generator=torch.Generator().manual_seed(1))
trainer = Trainer(
    get_peft_model(GPT2LMHeadModel(config), lora),
    TrainingArguments("out", report_to="none", use_cpu=True, disable_tqdm=True),
    train_dataset=[{"input_ids": row, "labels": row} for row in ids],
)
client = patch(trainer)

if __name__ == "__main__":
    trainer.train()
