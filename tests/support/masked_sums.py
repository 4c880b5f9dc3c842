"""A small masked run, the updates of its devices, and their mean in rationals."""

from fractions import Fraction

import numpy as np

from support.masked_devices import integers

ZEROS = {"bias": np.zeros(3, np.float32), "weight": np.zeros((5, 7), np.float32)}
MASKED = {
    "max_abs": 1.0,
    "weighting": "uniform",
    "aggregation": {"name": "mean"},
    "cohort": {"goal": 5, "quorum": 3, "deadline_s": 60.0, "patience_s": 0.3},
    "masking": {
        "group": 8, "min_group": 3, "phase_s": 2.0, "session_s": 60.0, "sum_bits": 32,
        "precision": 1e-5, "metrics": {"loss": 10.0},
    },
}  # fmt: skip


def update(seed):
    draw = np.random.default_rng(seed)
    return {name: draw.uniform(-0.5, 0.5, a.shape).astype(np.float32) for name, a in ZEROS.items()}


def mean_of(devices, exponent):
    """The mean that the devices' sum gives, in rationals."""
    total = sum(device.weight for device in devices)
    means = {}
    for name, zeros in ZEROS.items():
        sums = sum(integers(d.update[name], exponent, d.weight).astype(object) for d in devices)
        step = Fraction(2) ** exponent * total
        means[name] = np.array(
            [np.float32(float(Fraction(int(s)) / step)) for s in sums], np.float32
        ).reshape(zeros.shape)
    return means


OVER_SESSIONS = MASKED | {
    "aggregation": {"name": "median", "over": "sessions"},
    "cohort": MASKED["cohort"] | {"goal": 12, "quorum": 9},
    "masking": MASKED["masking"] | {"group": 4},
}


def median_of(devices, sessions):
    """The median of the means of these sessions, by numpy: of their members' integers."""
    by_name = {device.name: device for device in devices}
    exponent, medians = devices[0].task.masking.exponent, {}
    for name, zeros in ZEROS.items():
        means = []
        for session in sessions:
            found = [by_name[member] for member in session.masked]
            sums = sum(integers(d.update[name], exponent, d.weight) for d in found)
            means.append(sums / (2.0**exponent * sum(d.weight for d in found)))
        medians[name] = np.median(means, axis=0).astype(np.float32).reshape(zeros.shape)
    return medians
