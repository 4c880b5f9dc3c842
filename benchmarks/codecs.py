"""How fast one core encodes and decodes, beside np.copyto of the same values in the same run.

Prints a table and writes out/codecs.json. GB/s count the bytes of the float32 values; `bytes` is
what is left of them.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np

from fedloom.protocol.codecs import codec, held
from fedloom.protocol.codecs.base import WORK

SETTINGS = {
    "fp16": {},
    "bf16": {},
    "int8": {},
    "int4": {},
    "top_k": {"fraction": 0.01},
    "random_k": {"fraction": 0.01},
    "low_rank": {"rank": 2},
    "lossless": {},
}


def rate(work, size_bytes, repeats):
    """The best GB/s of the repeats, after one run to touch the memory."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return size_bytes / min(times) / 1e9


def decoding(method, encoded, shape, size):
    def work():
        decoder = method.decoder(shape, 1, held(encoded.arrays))
        for start in range(0, size, WORK):
            decoder.block(start, min(size, start + WORK))

    return work


def inspecting(method, encoded, shape, stored):
    def work():
        inspector = method.inspector(shape, stored)
        for role, array in encoded.arrays.items():
            flat = array.reshape(-1)
            step = (1 << 20) // flat.itemsize  # as messages bring them
            for start in range(0, flat.size, step):
                for _ in inspector.feed(role, flat[start : start + step]):
                    pass
        for _ in inspector.finish():
            pass

    return work


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--values", type=int, default=1 << 22)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--only", nargs="*", default=list(SETTINGS))
    parser.add_argument("--out", type=Path, default=Path("out/codecs.json"))
    arguments = parser.parse_args()
    shape = (arguments.values // 1024, 1024)
    size = shape[0] * shape[1]
    values = np.random.default_rng(0).normal(0, 0.01, size).astype(np.float32)
    target = np.empty_like(values)
    rows = {}
    copied = rate(lambda: np.copyto(target, values), values.nbytes, arguments.repeats)
    print(f"{'codec':10} {'encode':>8} {'check':>8} {'decode':>8}  GB/s   bytes")
    print(f"{'np.copyto':10} {copied:8.2f} {'':>8} {copied:8.2f}")
    for name in arguments.only:
        method = codec(name, SETTINGS[name])
        encoded = method.encode(values, shape, 1, {})
        fast = {
            "encode": lambda m=method: m.encode(values, shape, 1, {}),
            "check": inspecting(method, encoded, shape, stored(encoded)),
            "decode": decoding(method, encoded, shape, size),
        }
        rows[name] = {w: rate(work, values.nbytes, arguments.repeats) for w, work in fast.items()}
        rows[name]["bytes"] = encoded.size_bytes / values.nbytes
        figures = " ".join(f"{rows[name][what]:8.2f}" for what in fast)
        print(f"{name:10} {figures}         {rows[name]['bytes']:.4f}")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps({"copyto": copied, "codecs": rows}, indent=2) + "\n")


def stored(encoded):
    """What a container would declare of the arrays."""
    from fedloom.protocol.codecs import ArrayInfo  # noqa: PLC0415 - beside what uses it
    from fedloom.protocol.tensors.container import dtype_name  # noqa: PLC0415

    return {
        role: ArrayInfo(dtype_name(array.dtype), array.shape)
        for role, array in encoded.arrays.items()
    }


if __name__ == "__main__":
    main()
