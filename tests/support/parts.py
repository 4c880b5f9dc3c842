"""Minimal settings that try each registered part of a run, with six clients.

Plain tables as in a run.toml, without imports from the product: the comparison of two commits
(`scripts/compare_commits.py`) uses them, too. Tests hold them complete: a part that is registered
and not listed here fails.
"""

NAMES = tuple(f"client-{number:03}" for number in range(6))
"""Of the clients, as a simulation numbers them."""

_EACH_ONCE = {"weighting": "uniform"}
_PRIVATE = {"clip": 1.0, "noise_multiplier": 0.5, "delta": 1e-3, "noise": "seed"}

STRATEGIES = {
    "fedavg": {},
    "fedavgm": {},
    "fedadagrad": {},
    "fedadam": {},
    "fedyogi": {},
    "fedlamb": {},
    "feddyn": {"strategy": {"alpha": 0.1, "clients": 6}, **_EACH_ONCE},
    "fednova": {},
    "ifca": {"strategy": {"clusters": 2}},
    "mimelite": _EACH_ONCE,
    "qfedavg": {"strategy": {"q": 1.0}, **_EACH_ONCE},
    "scaffold": {"strategy": {"clients": 6}, **_EACH_ONCE},
}
RULES = {"plain": {}, "fedprox": {"rule": {"mu": 0.1}}}
AGGREGATIONS = {
    "mean": {},
    "median": _EACH_ONCE,
    "trimmed_mean": {"aggregation": {"fraction": 0.2}, **_EACH_ONCE},
    "krum": {"aggregation": {"num_byzantine": 1}, **_EACH_ONCE},
    "multi_krum": {"aggregation": {"num_byzantine": 1}, **_EACH_ONCE},
    "bulyan": {"aggregation": {"num_byzantine": 0}, **_EACH_ONCE},
    "geometric_median": {},
    "centered_clipping": {"aggregation": {"radius": 0.5}},
    "norm_bounding": {"aggregation": {"bound": 0.5}},
    "fltrust": {"aggregation": {"trusted": NAMES[0]}, **_EACH_ONCE},
}
CODECS = {
    "fp16": {},
    "bf16": {},
    "int8": {},
    "int4": {},
    "top_k": {"fraction": 0.2},
    "random_k": {"fraction": 0.2},
    "low_rank": {"rank": 1},
    "lossless": {},
}
SELECTIONS = {
    "uniform": {},
    "size": {},
    "power_of_choice": {},
    "oort": {},
    "deadline": {},
    "sticky": {},
    "stratified": {"selection": {"patterns": ["*-00[0-2]", "*"]}},
}
PERSONAL = {"shared": {"keep": ["*bias"]}, "ditto": {"pull": 0.5}, "apfl": {"mix": 0.6}}
PRIVACY = {
    "dp_fedavg": _PRIVATE,
    "dp_ftrl": {**_PRIVATE, "restart_every": 1},
    "dp_bandmf": {**_PRIVATE, "separation": 1},
    "local": _PRIVATE,
}


def _named(table, name, settings):
    """The tables of a part: its settings may lie under its own table, beside others' settings."""
    return {**settings, table: {"name": name, **settings.get(table, {})}}


def parts():
    """Each part as (kind, name) → the tables of a run that has it."""
    made = {}
    for kind, table, known in (
        ("strategy", "strategy", STRATEGIES),
        ("rule", "rule", RULES),
        ("aggregation", "aggregation", AGGREGATIONS),
        ("selection", "selection", SELECTIONS),
    ):
        made |= {(kind, name): _named(table, name, given) for name, given in known.items()}
    for name, settings in CODECS.items():
        coded = {"name": name, **settings}
        made["codec", name] = {"compression": {"up": coded}}
        if name != "random_k":  # refused
            made["codec down", name] = {"compression": {"down": coded}}
    for name, settings in PERSONAL.items():
        made["personal", name] = {"personal": {"name": name, **settings}}
    for name, settings in PRIVACY.items():
        private = {"privacy": {"mechanism": name, **settings}, **_EACH_ONCE, "evaluate": False}
        made["privacy", name] = private
    return made
