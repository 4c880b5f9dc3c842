"""Flower's example apps: how to run each of them small and without a download, or why not.

The names are the folders of `examples/` in Flower's repository; an app that is not named here runs
with the defaults.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import prepare


@dataclass(frozen=True, kw_only=True)
class Example:
    """How one example runs.

    Attributes:
        folder: of its `pyproject.toml`, below the example's.
        nodes: number of nodes.
        config: overrides of its `[tool.flwr.app.config]`, to keep runs short.
        rows: bound of the rows of a replaced data set.
        prepare: makes files for the nodes in a folder; returns an additional node config for each.
        compare_replies: whether the nodes' replies are the same in every run.
        note: on what was replaced, for the table.
    """

    folder: str = "."
    nodes: int = 3
    config: dict[str, object] = field(default_factory=dict)
    rows: int = 600
    prepare: Callable[[Path, dict[str, str], Path, int], list[dict[str, object]]] | None = None
    compare_replies: bool = True
    note: str = ""

    @property
    def settings(self) -> str:
        """What differs from the app's own settings, as text."""
        overrides = [f"{name} = {value}" for name, value in self.config.items()]
        return ", ".join([f"{self.nodes} nodes", *overrides])


MASKED = "Replies are masked by fresh keys, so only results are compared"
DRAWN = "with drawn weights, not downloaded ones"
EXAMPLES = {
    "advanced-pytorch": Example(
        config={"num-server-rounds": 6}, note="Its strategy halves the learning rate in round 5"
    ),
    "embedded-devices": Example(
        prepare=prepare.own_script("generate_dataset.py", "--num-supernodes")
    ),
    "federated-analytics": Example(
        prepare=prepare.databases, note="SQLite in place of PostgreSQL"
    ),
    "federated-kaplan-meier-fitter": Example(nodes=2, note="Data that lifelines ships"),
    "fl-dp-sa": Example(nodes=5, compare_replies=False, note=MASKED),
    "flower-secure-aggregation": Example(
        nodes=5, config={"timeout": 10.0}, compare_replies=False,
        note=f"{MASKED}; a node drops out in each round",
    ),
    "flower-simulation-step-by-step-pytorch": Example(folder="my-awesome-app"),
    "flowertune-vit": Example(
        rows=24, config={"num-server-rounds": 2}, note=f"ViT-B/16 {DRAWN}"
    ),
    "opacus": Example(config={"num-server-rounds": 2}),
    "quickstart-fastai": Example(rows=120, config={"num-server-rounds": 2}),
    "quickstart-huggingface": Example(rows=240, note=f"A model of bert-tiny's sizes {DRAWN}"),
    "quickstart-jax": Example(config={"num-server-rounds": 3, "batch-size": 16}),
    "quickstart-mlx": Example(note="MLX for CPUs"),
    "quickstart-monai": Example(prepare=prepare.pictures, config={"num-server-rounds": 2}),
    "quickstart-pennylane": Example(rows=150, config={"num-server-rounds": 2, "local-epochs": 1}),
    "supernode-authentication": Example(prepare=prepare.own_script("prepare_dataset.py")),
    "vertical-fl": Example(config={"num-server-rounds": 10}),
    "xgboost-comprehensive": Example(
        rows=503_000, note="It splits off half a million rows for tests"
    ),
}  # fmt: skip

MISTRAL = "Needs a downloaded model (Mistral 7B) and a GPU for bitsandbytes"
REFUSED = {
    "fedrag": "Needs downloaded models, for text (SmolLM2-1.7B) and for embeddings",
    "flowertune-llm": "Needs a downloaded model (OpenLLaMA 3B) and a GPU for bitsandbytes",
    "flowertune-llm-code": MISTRAL,
    "flowertune-llm-finance": MISTRAL,
    "flowertune-llm-general-nlp": MISTRAL,
    "flowertune-llm-medical": MISTRAL,
    "quickstart-lerobot": "Needs lerobot from a git repository and its downloaded policy",
    "whisper-federated-finetuning": "Needs a downloaded model (whisper-tiny)",
}
"""Apps that need a download beside data."""
