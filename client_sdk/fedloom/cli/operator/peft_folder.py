"""A folder that `peft.PeftModel.from_pretrained` loads: a configuration and a run's adapters.

Source: peft's checkpoint format, https://huggingface.co/docs/peft/developer_guides/checkpoint.

Invariant: what is written beside a configuration has its ranks and targets; the scale of adapters
stands in the configuration alone, so another one would give other outputs without an error.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedloom.protocol.errors import UsageError
from fedloom.protocol.manifest import read_manifest
from fedloom.strategies.adapters.settings import REST

CONFIG, ADAPTERS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX, _A = "base_model.model.", ".lora_A.weight"


def read_config(folder: Path) -> dict[str, Any]:
    """Read the configuration of a folder.

    Raises:
        UsageError: there is none.
    """
    path = folder / CONFIG
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        raise UsageError(
            f"Expected {path}, which has the adapters' rank and scale. Write it with the code of a "
            "client: client.model.peft_config['default'].save_pretrained(DIR)."
        ) from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read as JSON: {error}.") from None
    if not isinstance(found, dict) or "peft_type" not in found:
        raise UsageError(f"Expected a configuration of peft in {path}, got no peft_type.")
    return found


def check(config: Mapping[str, Any], model: Path) -> None:
    """Check that a model is the adapters of a configuration.

    Args:
        config: from `read_config`.
        model: a run's model, safetensors.

    Raises:
        UsageError: it is not.
    """
    shapes = {name: spec.shape for name, spec in read_manifest(model).specs.items()}
    if other := sorted(name for name in shapes if not name.startswith(_PREFIX)):
        raise UsageError(
            f"Expected a model of adapters, whose tensors begin with {_PREFIX}, got {other[0]!r}."
        )
    if more := sorted(name for name in shapes if name.endswith(REST)):
        raise UsageError(
            f"Expected a model of adapters alone, got {more[0]!r}: this run adds differences to "
            "frozen weights, which peft's adapters cannot hold. Export it with --out, and merge it "
            "with fedloom.client.hf.save_pretrained(…, merged=True)."
        )
    if config["peft_type"] != "LORA" or config.get("rank_pattern"):
        return
    ranks = {name.removesuffix(_A): shape[0] for name, shape in shapes.items() if name.endswith(_A)}
    for layer, rank in sorted(ranks.items()):
        if rank != config.get("r"):
            raise UsageError(
                f"Expected adapters of rank {config.get('r')}, as {CONFIG} has it, got {rank} in "
                f"{layer}. Take the configuration of the clients."
            )
    targets = config.get("target_modules")
    if isinstance(targets, list):
        for layer in sorted(ranks):
            if not any(layer == t or layer.endswith(f".{t}") for t in targets):
                raise UsageError(
                    f"Expected adapters of {', '.join(targets)}, as {CONFIG} has it, got {layer}. "
                    "Take the configuration of the clients."
                )
