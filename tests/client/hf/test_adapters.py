"""[adapters] of a run with transformers and peft: ranks, frozen weights, refusals."""

import copy
from functools import partial

import numpy as np
import pytest

pytest.importorskip("transformers", reason="needs transformers and peft: make hf")

import peft
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    TrainingArguments,
)

from fedloom.cli.operator.peft_folder import ADAPTERS, check, read_config
from fedloom.client.hf import HFClient, save_pretrained, tensors
from fedloom.client.hf.beside import Beside
from fedloom.client.testing import rounds
from fedloom.protocol.errors import UsageError
from fedloom.protocol.tensors.container import read_params, write_file
from fedloom.strategies import Adapters
from fedloom.strategies.adapters.settings import layers, with_rests
from support import tasks
from support.agents import played, result, submit

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of peft beside transformers 5

WORDS, LENGTH = 32, 6
SCALE = 2.0
SEND = Adapters(aggregate="product", rest="send", scale=SCALE)


def base(kind="llama"):
    """A tiny model with frozen weights that are `Linear` or transformers' `Conv1D`."""
    torch.manual_seed(0)
    if kind == "gpt2":
        dropouts = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
        size = {"vocab_size": WORDS, "n_positions": 8, "n_embd": 16, "n_layer": 2, "n_head": 2}
        ends = {"bos_token_id": None, "eos_token_id": None}
        return GPT2LMHeadModel(GPT2Config(**size, **ends, **dropouts))
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=WORDS, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
            num_attention_heads=2, max_position_embeddings=8, pad_token_id=0,
        )
    )  # fmt: skip


def adapted(rank, kind="llama", scale=SCALE):
    """The model with adapters of a rank."""
    targets = {"gpt2": ["c_attn"], "llama": ["q_proj", "v_proj"]}[kind]
    model = base(kind)
    torch.manual_seed(1)
    config = peft.LoraConfig(
        r=rank, lora_alpha=scale * rank, target_modules=targets, fan_in_fan_out=kind == "gpt2",
        task_type="CAUSAL_LM",
    )  # fmt: skip
    return peft.get_peft_model(model, config)


def examples(count, seed):
    drawn = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, WORDS, (count, LENGTH), generator=drawn)
    return [{"input_ids": row, "labels": row.clone()} for row in ids]


def client_of(folder, rank, seed=1, **settings):
    given = {"report_to": "none", "use_cpu": True, "disable_tqdm": True}
    model = adapted(rank, **settings)
    return HFClient(model, TrainingArguments(str(folder), **given), examples(8, seed))


def filled(model, rest):
    """A run's model with values everywhere."""
    rng = np.random.default_rng(3)
    start = tensors.arrays(model)
    start = with_rests(start) if rest else start
    return {n: rng.normal(size=a.shape).astype(np.float32) / 4 for n, a in start.items()}


def merged_by_hand(kind, params):
    """The base model with scale · (B A + rest) added to its weights."""
    model = base(kind)
    for layer in layers(params):
        added = SCALE * (params[layer.b] @ params[layer.a] + params.get(layer.rest, 0.0))
        weight = model.get_submodule(layer.name.removeprefix("base_model.model.")).weight
        with torch.no_grad():
            weight += torch.from_numpy((added.T if kind == "gpt2" else added).astype(np.float32))
    return model


def outputs(model):
    ids = torch.stack([row["input_ids"] for row in examples(3, 9)])
    with torch.no_grad():
        return model.eval()(input_ids=ids).logits


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("rank", [4, 1])
@pytest.mark.parametrize("rest", [False, True])
def test_a_device_of_any_rank_has_the_whole_function(kind, rank, rest, tmp_path):
    """Its outputs are those of merged weights; so are those of the saved model."""
    params = filled(adapted(4, kind), rest)
    expected = outputs(merged_by_hand(kind, params))
    model = adapted(rank, kind)
    beside = Beside(model, "default")
    for _ in range(2):  # a second model replaces the first
        tensors.load(model, params, SEND, beside)
    torch.testing.assert_close(outputs(model), expected, atol=1e-5, rtol=1e-4)
    if rank == 4:
        write_file(tmp_path / "model", params)
        fresh = adapted(4, kind)
        save_pretrained(fresh, tmp_path / "model", tmp_path / "whole", merged=True)
        loaded = type(base(kind)).from_pretrained(str(tmp_path / "whole"))
        torch.testing.assert_close(outputs(loaded), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("rank", [4, 2])
@pytest.mark.parametrize("rest", [False, True])
def test_without_its_adapter_a_device_has_the_base_model(rank, rest):
    """Disabled, or beside another active adapter: as DPO takes its reference model."""
    model = adapted(rank)
    expected = outputs(model)  # B is zero
    params = filled(adapted(4), rest)
    tensors.load(model, params, SEND, Beside(model, "default"))
    with model.disable_adapter():
        assert torch.equal(outputs(model), expected)
    model.add_adapter("reference", model.peft_config["default"])
    model.set_adapter("reference")
    assert torch.equal(outputs(model), expected)
    model.set_adapter("default")
    whole = outputs(merged_by_hand("llama", params))
    torch.testing.assert_close(outputs(model), whole, atol=1e-5, rtol=1e-4)


def test_frozen_a_halves_the_bytes(tmp_path):
    """A keeps its bits on the device and in the run's model, and is not sent; B learns."""
    client = client_of(tmp_path, 2)
    start = client.initial()
    run = {
        "train": {"learning_rate": 0.01, "steps": 2, "batch_size": 4},
        "adapters": {"aggregate": "freeze_a", "scale": SCALE},
    }
    done = rounds(client, num_rounds=2, run=run)
    for name, before in start.items():
        assert np.array_equal(done.params[name], before) == ("lora_A" in name)
    sent = sum(array.nbytes for name, array in start.items() if "lora_B" in name)
    assert sent <= done.rounds[0].update_bytes <= sent + 100 * len(start)
    assert all(p.requires_grad for n, p in client.model.named_parameters() if "lora_" in n)


@pytest.mark.parametrize("adapters", ["drop", "send", "stack"])
def test_devices_of_different_rank_train_by_products(tmp_path, adapters):
    """On a real server; peft loads what it can hold, a merged model has the whole function."""
    clients = {"one": client_of(tmp_path / "a", 4, 1), "two": client_of(tmp_path / "b", 2, 2)}
    start = clients["one"].initial()
    start = start if adapters == "drop" else with_rests(start)
    table = {"aggregate": "product", "rest": adapters, "scale": SCALE}
    table = {"aggregate": "stack", "scale": SCALE} if adapters == "stack" else table

    async def scenario(federation, agents):
        for name, client in clients.items():
            await agents.start(name, client)
        run = await submit(
            federation, start, rounds=2, adapters=table, cohort={"goal": 2, "quorum": 2},
            train={"steps": 4, "batch_size": 4, "learning_rate": 0.01},
        )  # fmt: skip
        await federation.ended(run)
        assert federation.ledger.run(run).state == "finished"
        sent = {m.client: m.bytes_up for m in federation.ledger.cohort(run, 2)}
        whole = sum(a.nbytes for n, a in start.items() if "rest" not in n)
        assert whole / 2 < sent["two"] < 0.75 * whole < sent["one"] < 1.5 * whole
        return {name: np.array(value) for name, value in result(federation, run).items()}

    params = played(tmp_path, scenario)
    assert not any(np.array_equal(params[n], start[n]) for n in start if "lora_B" not in n)
    expected = outputs(merged_by_hand("llama", params))
    write_file(tmp_path / "model", params)
    save = partial(save_pretrained, adapted(4), tmp_path / "model", tmp_path / "out")
    clients["one"].model.peft_config["default"].save_pretrained(str(tmp_path / "folder"))
    config = read_config(tmp_path / "folder")
    if adapters == "drop":
        check(config, tmp_path / "model")
        write_file(tmp_path / "folder" / ADAPTERS, read_params(tmp_path / "model"))
        loaded = peft.PeftModel.from_pretrained(base(), str(tmp_path / "folder"))
        torch.testing.assert_close(outputs(loaded), expected, atol=1e-5, rtol=1e-4)
    else:
        with pytest.raises(UsageError, match="merged=True"):
            check(config, tmp_path / "model")
        with pytest.raises(UsageError, match="merged=True"):
            save()
    save(merged=True)
    loaded = LlamaForCausalLM.from_pretrained(str(tmp_path / "out"))
    torch.testing.assert_close(outputs(loaded), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("rank", "scale", "adapters", "said"),
    [
        (2, SCALE, Adapters(), 'Expected rank 4 in .* "product" or "stack" also takes lower'),
        (8, SCALE, SEND, "Expected rank at most 4"),
        (2, SCALE, Adapters(aggregate="product"), r"Expected adapters\.scale in a run"),
        (4, 1.0, SEND, "scaled by 2, .*, got 1 in .*Set alpha to the scale"),
    ],
)
def test_devices_that_do_not_fit_are_refused(rank, scale, adapters, said):
    """By name, and nothing is copied."""
    params = filled(adapted(4), rest=False)
    model = adapted(rank, scale=scale)
    before = copy.deepcopy(tensors.arrays(model))
    with pytest.raises(UsageError, match=said):
        tensors.load(model, params, adapters, Beside(model, "default"))
    assert all(np.array_equal(a, before[n]) for n, a in tensors.arrays(model).items())


def test_kept_optimizers_are_refused_with_products(tmp_path):
    """Their moments are of other factors; and a client's test cannot average products."""
    client = client_of(tmp_path, 4)
    kept = HFClient(
        client.model, client.trainer.args, examples(4, 1), keep_optimizer=tmp_path / "kept"
    )
    task = tasks.task(steps=1, batch_size=4)
    kept.train(kept.initial(), task)
    task.local.adapters = SEND
    with pytest.raises(UsageError, match="keep_optimizer with"):
        kept.train(kept.initial(), task)
    with pytest.raises(UsageError, match="need a server"):
        rounds(client, run={"adapters": {"aggregate": "product"}})


def test_a_model_without_adapters_refuses_a_run_that_sets_their_scale():
    """It has none to compare."""
    model = base()
    with pytest.raises(UsageError, match=r"scaled by 2, .*, got a client that cannot tell"):
        tensors.load(model, tensors.arrays(model), Adapters(scale=SCALE))
    tensors.load(model, tensors.arrays(model), Adapters())
