"""A masked run with two widths: its devices' narrow updates, and their mean in rationals."""

from fractions import Fraction
from hashlib import blake2b

import numpy as np

from support.masked_devices import Device, integers
from support.masked_sums import MASKED, ZEROS

WIDTHS = [1.0, 0.5]
TRAIN = {"epochs": 1, "batch_size": 8, "learning_rate": 0.1, "widths": WIDTHS}
NARROW = {"weight": ((0, 3), (0, 7))}
"""What the half width has of `ZEROS`; it has all of `bias`."""
RUN = MASKED | {
    "weighting": "examples",
    "max_weight": 8.0,
    "train": TRAIN,
    "cohort": MASKED["cohort"] | {"goal": 8, "quorum": 3},
    "masking": MASKED["masking"] | {"sum_bits": 64},
}


def width_of(name):
    """The width that a name draws."""
    drawn = blake2b(name.encode(), digest_size=8, person=b"departures").digest()
    return WIDTHS[int.from_bytes(drawn, "little") % len(WIDTHS)]


def names(whole, narrow):
    """So many names of each width."""
    every = [f"d{number}" for number in range(100)]
    found = {w: [name for name in every if width_of(name) == w] for w in WIDTHS}
    return found[1.0][:whole] + found[0.5][:narrow]


def update_of(name):
    """The differences of a device, and the ranges that they cover."""
    draw = np.random.default_rng(int(name[1:]))
    whole = {n: draw.uniform(-0.5, 0.5, a.shape).astype(np.float32) for n, a in ZEROS.items()}
    slices = NARROW if width_of(name) < 1 else {}
    boxes = {n: tuple(slice(*edges) for edges in box) for n, box in slices.items()}
    return {n: values[boxes.get(n, ...)] for n, values in whole.items()}, slices


def device(federation, name, kind=Device, **settings):
    """A device of its width, whose weight follows from its name."""
    update, slices = update_of(name)
    weight = 1 + int(name[1:]) % 5
    return kind(federation, name, update, weight=weight, **{"slices": slices, **settings})


def mean_of(devices):
    """The mean of each value over the devices that cover it, 0 where none does; in rationals."""
    exponent, means = devices[0].task.masking.exponent, {}
    for name, zeros in ZEROS.items():
        sums, weights = np.zeros(zeros.shape, object), np.zeros(zeros.shape, object)
        for each in devices:
            box = each.slices.get(("delta", name))
            place = ... if box is None else tuple(slice(*edges) for edges in box.ranges)
            found = integers(each.update[name], exponent, each.weight).astype(object)
            sums[place] += found.reshape(each.update[name].shape)
            weights[place] += each.weight
        pairs = zip(sums.reshape(-1), weights.reshape(-1), strict=True)
        exact = [Fraction(int(s), w << exponent) if w else Fraction(0) for s, w in pairs]
        means[name] = np.array([np.float32(float(x)) for x in exact]).reshape(zeros.shape)
    return means
