"""A round of adapters by products, with the shapes of LLaMA-7B: the server's memory and time.

The q and v projections of 32 layers, 64 weights of 4096×4096, 1.07 G coordinates. The updates of
random numbers are files in the format of the spool; the step of the round is the server's own, up
to the stored model. With `--rest drop` the model is the factors alone, with `send` and `stack` also
the differences to the frozen weights (4.3 GB). Prints the kernel's own record of the peak (VmHWM),
what was there before the step, and writes out/adapters.json. Needs 9 GB of disk with differences.
"""

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path

import numpy as np

from fedloom.protocol.tensors.container import write_file
from fedloom.protocol.tensors.file_arrays import Scratch
from fedloom.protocol.updates.message import TensorPart, write_body
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.engine import RoundKind
from fedloom.server.planning import limits
from fedloom.server.planning.advance import advance
from fedloom.server.planning.round_plan import RoundPlan
from fedloom.server.planning.round_result import ClientReport, RoundResult
from fedloom.server.planning.run_setup import RunSetup
from fedloom.server.planning.spec import parse
from fedloom.server.rounds import state_files
from fedloom.server.storage.model_store import ModelStore
from fedloom.server.storage.stored_updates import SpoolUpdates, StoredUpdate
from fedloom.strategies import DELTA, Slice
from fedloom.strategies.adapters.settings import layers
from fedloom.strategies.exact.lazy_arrays import Pieces

MIB = 2**20


class Zeros(Pieces):
    """A tensor of zeros that takes no memory."""

    dtype = np.dtype(np.float32)

    def __init__(self, shape):
        self.shape = shape

    def piece(self, start, stop):
        return np.zeros(stop - start, np.float32)


def peak_mib():
    """The largest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def model_of(arguments, rng):
    """A model of adapters with values everywhere."""
    size, rank, model = arguments.width, arguments.rank, {}
    for number in range(arguments.tensors):
        name = f"base_model.model.model.layers.{number // 2}.self_attn.{'qv'[number % 2]}_proj"
        model[f"{name}.lora_A.weight"] = rng.normal(size=(rank, size)).astype(np.float32) / 64
        model[f"{name}.lora_B.weight"] = rng.normal(size=(size, rank)).astype(np.float32) / 64
        if arguments.rest != "drop":
            model[f"{name}.lora_rest.weight"] = Zeros((size, size))
    return model


def update_of(path, model, manifest, rank, rng):
    """Write an update of the leading ranks; returns its header."""
    parts = []
    for layer in layers(model):
        for name in (layer.a, layer.b):
            shape = list(model[name].shape)
            shape[0 if name == layer.a else 1] = rank
            values = rng.normal(size=shape).astype(np.float32) / 640
            box = Slice(tuple((0, stop) for stop in shape))
            parts.append(TensorPart(DELTA, name, box, values))
    described, size_bytes, _ = write_body(path, parts, manifest)
    return fleet_pb2.UpdateHeader(weight=1.0 + rank, parts=described, size_bytes=size_bytes)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--rank", type=int, default=16, help="of the model; clients have 4, 8, 16")
    parser.add_argument("--tensors", type=int, default=64)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--rest", choices=["drop", "send", "stack"], default="drop")
    parser.add_argument("--out", type=Path, default=Path("out"))
    arguments = parser.parse_args()
    table = {"aggregate": "stack"} if arguments.rest == "stack" else {
        "aggregate": "product", "rest": arguments.rest,
    }  # fmt: skip
    spec = parse({
        "train": {"epochs": 1, "learning_rate": 0.1}, "cohort": {"goal": arguments.clients},
        "adapters": table,
    })  # fmt: skip
    rng = np.random.default_rng(0)
    arguments.out.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=arguments.out) as place:
        folder = Path(place)
        models = ModelStore(folder / "models")
        model = model_of(arguments, rng)
        write_file(folder / "initial", model)
        digest = models.add(folder / "initial")
        (folder / "initial").unlink()
        manifest = models.manifest(digest)
        stored = []
        for number in range(arguments.clients):
            path = folder / f"update-{number}"
            rank = max(1, arguments.rank >> number % 3)
            header = update_of(path, model, manifest, rank, rng)
            stored.append(StoredUpdate(f"client-{number:03}", path, header))
        del model
        setup = RunSetup.of(spec, manifest, None)
        plan = RoundPlan(
            run="r", number=1, kind=RoundKind.TRAIN, trained=0, spec=spec, model=digest,
            strategy_state=None, manifest=manifest, limits=limits.limits(spec, manifest),
        )  # fmt: skip
        before_mib, start = peak_mib(), time.perf_counter()
        result = RoundResult(
            number=1,
            kind=RoundKind.TRAIN,
            reports=[ClientReport(client=each.client, asked_in=1) for each in stored],
            total=limits.empty_sum(spec, manifest),
            updates=SpoolUpdates(limits.sums(spec, manifest), stored),
            keep=Scratch(folder).keep,
        )
        after = advance(setup, state_files.load(models, setup, plan), result)
        step_s = time.perf_counter() - start
        state_files.store(models, setup, plan, after)
        row = {
            "adapters": table,
            "clients": arguments.clients,
            "coordinates": arguments.tensors * arguments.width**2,
            "model_mb": manifest.size_bytes / 1e6,
            "update_mb": max(each.header.size_bytes for each in stored) / 1e6,
            "before_mib": before_mib,
            "peak_mib": peak_mib(),
            "step_s": step_s,
            "store_s": time.perf_counter() - start - step_s,
            "note": after.note,
        }
    for name, value in row.items():
        print(f"{name:12} {value:,.1f}" if isinstance(value, float) else f"{name:12} {value}")
    (arguments.out / "adapters.json").write_text(json.dumps(row, indent=1) + "\n")


if __name__ == "__main__":
    main()
