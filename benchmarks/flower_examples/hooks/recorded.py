"""Writes what a ServerApp received and computed: all numbers of replies, and its results.

The file is a dict of arrays by name (`.npz`), at the path `record` of FLOWER_EXAMPLE:
`reply/TYPE/NODE/COUNT/RECORD/KEY` and `result/...`. Bytes and arrays of bytes that hold JSON, as
models of trees do, become the numbers in it: their texts hold times and random ids.
"""

import functools
import json
import os
from pathlib import Path

import fixed_seeds
import numpy as np

found = {}
"""The record of this process, by name."""
results = []
"""Every Result of a strategy."""


def settings():
    return json.loads(os.environ["FLOWER_EXAMPLE"])


def put(name, value):
    """Record one value, or all that it contains."""
    value = plain(value)
    if isinstance(value, dict):
        for key, part in value.items():
            put(f"{name}/{key}", part)
    elif value is not None:
        found[name] = np.asarray(value)


def plain(value):
    """A value as an array, or what it contains by name."""
    if hasattr(value, "numpy") and hasattr(value, "dtype"):  # flwr's Array
        value = np.asarray(value.numpy())
    if isinstance(value, np.ndarray) and value.dtype == np.uint8:
        value = value.tobytes()
    if isinstance(value, bytes):
        is_json = value[:1] in (b"{", b"[")
        return numbers(json.loads(value)) if is_json else np.frombuffer(value, np.uint8)
    if hasattr(value, "tensors"):  # flwr.common.Parameters
        from flwr.common import parameters_to_ndarrays

        value = parameters_to_ndarrays(value)
    if isinstance(value, list | tuple):
        value = dict(enumerate(value))
    return dict(value.items()) if hasattr(value, "items") else value


def numbers(document):
    """The numbers of a JSON document, in its order; models write most of theirs as text."""
    if isinstance(document, dict):
        return np.concatenate([np.zeros(0), *(numbers(v) for _, v in sorted(document.items()))])
    if isinstance(document, list):
        return np.concatenate([np.zeros(0), *map(numbers, document)])
    try:
        return np.array([float(document)]) if not isinstance(document, bool) else np.zeros(0)
    except (TypeError, ValueError):
        return np.zeros(0)


def server_app(module):
    call = module.ServerApp.__call__

    @functools.wraps(call)
    def recorded(self, grid, context):
        from recording_grid import Recording

        fixed_seeds.seed("server")
        call(self, Recording(grid), context)
        for place, result in enumerate(results):
            put(f"result/{place}", vars(result))
        path = Path(settings()["record"])
        partial = path.with_suffix(".partial.npz")
        np.savez(partial, **found)
        partial.replace(path)

    module.ServerApp.__call__ = recorded


def strategy_result(module):
    init = module.Result.__init__

    @functools.wraps(init)
    def recorded(self, *arguments, **settings):
        init(self, *arguments, **settings)
        results.append(self)

    module.Result.__init__ = recorded


def history(name, value):
    """Record a History of the older API, whose values are (round, value) pairs."""
    put(name, {key: part for key, part in vars(value).items() if part})


def older_server(module):
    fit = module.Server.fit

    @functools.wraps(fit)
    def recorded(self, *arguments, **settings):
        outcome = fit(self, *arguments, **settings)
        history("result/history", outcome[0])
        put("result/parameters", self.parameters)
        return outcome

    module.Server.fit = recorded


def workflow(module):
    call = module.DefaultWorkflow.__call__

    @functools.wraps(call)
    def recorded(self, grid, context):
        call(self, grid, context)
        history("result/history", context.history)
        put("result/parameters", context.state.array_records[module.MAIN_PARAMS_RECORD])

    module.DefaultWorkflow.__call__ = recorded
