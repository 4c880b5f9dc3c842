"""Adapters beside a configuration: what fits it is written, other things are refused."""

import json

import numpy as np
import pytest

from fedloom.cli.operator.peft_folder import check, read_config
from fedloom.protocol.errors import UsageError
from fedloom.protocol.tensors.container import write_file

LAYER = "base_model.model.h.0.attn.c_attn"
CONFIG = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["c_attn"]}


def model(path, rank=2, layer=LAYER):
    arrays = {
        f"{layer}.lora_A.weight": np.zeros((rank, 8), np.float32),
        f"{layer}.lora_B.weight": np.zeros((24, rank), np.float32),
    }
    write_file(path, arrays)
    return path


@pytest.mark.parametrize(
    "config",
    [
        CONFIG,
        {**CONFIG, "target_modules": "all-linear"},
        {**CONFIG, "r": 8, "rank_pattern": {"c_attn": 2}},
        {"peft_type": "PREFIX_TUNING"},
    ],
)
def test_adapters_of_the_configuration_fit(tmp_path, config):
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    check(read_config(tmp_path), model(tmp_path / "model"))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"rank": 4}, "Expected adapters of rank 2.* got 4"),
        ({"layer": "base_model.model.h.0.mlp.c_fc"}, "Expected adapters of c_attn.*c_fc"),
        ({"layer": "transformer.h.0"}, "Expected a model of adapters.*transformer"),
    ],
)
def test_other_models_are_refused(tmp_path, change, told):
    with pytest.raises(UsageError, match=told):
        check(CONFIG, model(tmp_path / "model", **change))


@pytest.mark.parametrize(
    ("text", "told"),
    [(None, "peft_config"), ("{", "cannot be read as JSON"), ("[]", "no peft_type")],
)
def test_a_folder_without_a_configuration_is_refused(tmp_path, text, told):
    if text is not None:
        (tmp_path / "adapter_config.json").write_text(text)
    with pytest.raises(UsageError, match=told):
        read_config(tmp_path)
