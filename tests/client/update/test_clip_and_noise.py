"""What a device clips and noises: floating point alone."""

import numpy as np
import pytest

from fedloom.client.training.client_rule import RuleOutput
from fedloom.client.update.clip_and_noise import Guard
from fedloom.protocol.manifest import Manifest
from fedloom.protocol.updates.message import TensorPart
from fedloom.strategies import DELTA, Full, TensorSpec

TENSORS = {"weight": np.float32, "mean": np.float64, "batches": np.int64, "mask": np.uint8}
DTYPES = {np.float32: "F32", np.float64: "F64", np.int64: "I64", np.uint8: "U8"}
MANIFEST = Manifest(
    dtypes={name: DTYPES[dtype] for name, dtype in TENSORS.items()},
    specs={name: TensorSpec(shape=(3,), dtype=np.dtype(d)) for name, d in TENSORS.items()},
    size_bytes=0,
)
MOVED = {"weight": [0.3, -0.4, 0.0], "mean": [0.0, 1.2, 0.0], "batches": [500] * 3, "mask": [9] * 3}
NORM = 1.3  # of weight and mean


def protected(**settings):
    parts = [
        TensorPart(DELTA, name, Full(), np.array(MOVED[name], dtype), np.zeros(3, dtype))
        for name, dtype in TENSORS.items()
    ]
    guard = Guard(seeded=True, **settings)
    return guard.protect(RuleOutput(parts), MANIFEST, run="r", round=1, seed=3, secret=bytes)


@pytest.mark.parametrize("clip_norm", [0.1, 1.0, 5.0])
def test_integers_take_no_part_in_the_clip(clip_norm):
    """Five hundred counted batches leave the weights as long as without them."""
    made = protected(clip_norm=clip_norm, count_within=True)
    sent = {part.tensor: np.asarray(part.values) for part in made.parts}
    assert set(sent) == {"weight", "mean"}
    scale = min(1.0, clip_norm / NORM)
    for name, values in sent.items():
        np.testing.assert_allclose(values, np.array(MOVED[name]) * scale, rtol=2e-6)
    assert made.scalars == {"within_clip": 0.5 if clip_norm > NORM else -0.5}


def test_integers_get_no_noise():
    """They are not sent at all; the others are noisy."""
    made = protected(clip_norm=1.0, noise_multiplier=2.0)
    assert {part.tensor for part in made.parts} == {"weight", "mean"}
    assert all(np.abs(np.asarray(part.values)).min() > 0 for part in made.parts)
