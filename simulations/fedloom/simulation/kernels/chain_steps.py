"""Steps of gradient descent on chains of linear layers with ReLU, compiled by numba for CPUs.

Libraries make their matrix products for large matrices. In batches of ten, passes over a weight
cost as much as the arithmetic, and a call as much as a small layer. Here an epoch is one call, rows
of a weight are read once for several examples, and a row's step adds only the examples whose
gradient at that output is not zero: ReLU leaves it for about half of them.

Legend: h inputs of a layer, d gradients at its outputs, B examples in a batch.

Source: as `fused`, with the same products and another order of sums.

Invariant: bits depend on the arguments, the type of CPU and numba alone.
"""

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedloom.strategies.exact.compiled import Compiled, compile_

Array = NDArray[Any]

_TOGETHER: Final = 16
"""Examples whose inputs stay in the cache while all rows of a weight take their steps."""


def _forward(h: Array, weight: Array, bias: Array, out: Array) -> None:
    """Write h Wᵀ + b to `out`, two examples and five outputs at a time.

    Where fewer are left, the last one is computed again. Ten sums fit the registers of every CPU.
    """
    last, end = len(h) - 1, len(weight) - 1
    zero = h.dtype.type(0)
    for j in range(0, end + 1, 5):
        j1, j2, j3, j4 = min(j + 1, end), min(j + 2, end), min(j + 3, end), min(j + 4, end)
        w0, w1, w2, w3, w4 = weight[j], weight[j1], weight[j2], weight[j3], weight[j4]
        for i in range(0, last + 1, 2):
            x, y = h[i], h[min(i + 1, last)]
            a0 = a1 = a2 = a3 = a4 = zero
            b0 = b1 = b2 = b3 = b4 = zero
            for t in range(h.shape[1]):
                a0 += x[t] * w0[t]
                a1 += x[t] * w1[t]
                a2 += x[t] * w2[t]
                a3 += x[t] * w3[t]
                a4 += x[t] * w4[t]
                b0 += y[t] * w0[t]
                b1 += y[t] * w1[t]
                b2 += y[t] * w2[t]
                b3 += y[t] * w3[t]
                b4 += y[t] * w4[t]
            one, two = out[i], out[min(i + 1, last)]
            one[j], one[j1], one[j2], one[j3], one[j4] = a0, a1, a2, a3, a4
            two[j], two[j1], two[j2], two[j3], two[j4] = b0, b1, b2, b3, b4
    if len(bias):
        for i in range(last + 1):
            for j in range(end + 1):
                out[i, j] += bias[j]


def _add_rows(total: Array, rows: Array, places: Array, factors: Array, count: int) -> None:
    """Add `factors[n]` times the row `places[n]` to `total`, for the first `count` numbers n."""
    n = 0
    while n + 4 <= count:
        r0, r1, r2, r3 = (
            rows[places[n]], rows[places[n + 1]], rows[places[n + 2]], rows[places[n + 3]]
        )  # fmt: skip
        f0, f1, f2, f3 = factors[n], factors[n + 1], factors[n + 2], factors[n + 3]
        for t in range(len(total)):
            total[t] += f0 * r0[t] + f1 * r1[t] + f2 * r2[t] + f3 * r3[t]
        n += 4
    if n + 2 <= count:
        r0, r1 = rows[places[n]], rows[places[n + 1]]
        f0, f1 = factors[n], factors[n + 1]
        for t in range(len(total)):
            total[t] += f0 * r0[t] + f1 * r1[t]
        n += 2
    if n < count:
        r0, f0 = rows[places[n]], factors[n]
        for t in range(len(total)):
            total[t] += f0 * r0[t]


def _is_finite(x: Array) -> bool:
    total = x.dtype.type(0)
    for row in x:
        for value in row:
            total += value - value
    return bool(total == 0)


def _take_step(  # noqa: PLR0917 - numba calls by position
    weight: Array, bias: Array, d: Array, h: Array, rate: Any, skip: bool, places: Array,
    factors: Array,
) -> None:  # fmt: skip
    """Add −rate dᵀh to a weight, and −rate dᵀ1 to its bias, a few examples at a time.

    Args:
        weight: [out, in].
        bias: [out] or [0].
        d: [B, out].
        h: [B, in].
        rate: of the step, over B.
        skip: whether products with 0 are left out: all h are finite.
        places: to work in.
        factors: to work in.
    """
    for start in range(0, len(h), _TOGETHER):
        stop = min(start + _TOGETHER, len(h))
        for j in range(len(weight)):
            count = 0
            total = h.dtype.type(0)
            for i in range(start, stop):
                if d[i, j] != 0 or not skip:
                    places[count] = i
                    factors[count] = -rate * d[i, j]
                    total += factors[count]
                    count += 1
            add_rows(weight[j], h, places, factors, count)
            if len(bias):
                bias[j] += total


def _below(d: Array, weight: Array, out: Array, places: Array, factors: Array) -> None:
    """Write d W, the gradients at the inputs, to `out`."""
    for i in range(len(d)):
        count = 0
        for t in range(out.shape[1]):
            out[i, t] = 0
        for j in range(len(weight)):
            if d[i, j] != 0:
                places[count] = j
                factors[count] = d[i, j]
                count += 1
        add_rows(out[i], weight, places, factors, count)


def _relu(values: Array) -> None:
    """Apply ReLU in place; not-a-number stays."""
    for i in range(len(values)):
        for j in range(values.shape[1]):
            if values[i, j] < 0:  # noqa: PLR1730 - the maximum of not-a-number may be 0
                values[i, j] = 0


def _through_relu(d: Array, h: Array) -> None:
    """Turn gradients after ReLU, whose outputs are h, into those before it, in place."""
    for i in range(len(d)):
        for j in range(d.shape[1]):
            if h[i, j] <= 0:
                d[i, j] = 0


def _at_scores(scores: Array, y: Array, d: Array) -> None:
    """Write the gradient of cross-entropy, softmax − target, to `d`."""
    for i in range(len(y)):
        top = scores[i, 0]
        for score in scores[i]:
            top = max(top, score)
        total = scores.dtype.type(0)
        for j in range(scores.shape[1]):
            d[i, j] = math.exp(scores[i, j] - top)
            total += d[i, j]
        for j in range(scores.shape[1]):
            d[i, j] /= total
        d[i, y[i]] -= 1


def _pull_to(value: Array, start: Array, pull: Any) -> None:
    """Move values towards those at the start."""
    kept = value.dtype.type(1) - pull
    for n in range(len(value)):
        value[n] = kept * value[n] + pull * start[n]


def _train(  # noqa: PLR0917 - numba calls by position
    weights: tuple[Array, ...],
    biases: tuple[Array, ...],
    start_weights: tuple[Array, ...],
    start_biases: tuple[Array, ...],
    x: Array,
    y: Array,
    scores: Array,
    outputs: tuple[Array, ...],
    gradients: tuple[Array, ...],
    rate: float,
    pull: float,
) -> None:
    """Take one step for each batch in order. L layers; floating-point arrays have one dtype.

    Args:
        weights: L of [out, in], C-contiguous; changed.
        biases: L of [out], or [0] where a layer has none; changed.
        start_weights: before the client's training; read if there is a pull.
        start_biases: likewise.
        x: [examples, in].
        y: int64 [examples], the classes.
        scores: [examples, classes]; each example's before its step are written.
        outputs: L of [B, out] to work in; the last is not used.
        gradients: L of [B, out] to work in.
        rate: η.
        pull: ημ, towards the start.

    Raises:
        IndexError: a target is no class.
    """
    for target in y:
        if not 0 <= target < scores.shape[1]:  # compiled code would write elsewhere
            raise IndexError("target out of range")
    last, size = len(weights) - 1, len(gradients[0])
    widest = _TOGETHER
    for weight in weights:
        widest = max(widest, len(weight))
    places, factors = np.empty(widest, np.int64), np.empty(widest, x.dtype)
    skip = is_finite(x)
    for begin in range(0, len(x), size):
        stop = min(begin + size, len(x))
        n = stop - begin
        h = x[begin:stop]
        for k in range(last):
            forward(h, weights[k], biases[k], outputs[k][:n])
            h = outputs[k][:n]
            relu(h)
        forward(h, weights[last], biases[last], scores[begin:stop])
        at_scores(scores[begin:stop], y[begin:stop], gradients[last][:n])
        of = x.dtype.type(rate / n)
        for k in range(last, -1, -1):
            d = gradients[k][:n]
            h = x[begin:stop] if k == 0 else outputs[k - 1][:n]
            if k > 0:
                below(d, weights[k], gradients[k - 1][:n], places, factors)
                through_relu(gradients[k - 1][:n], h)
            if pull != 0:
                for j in range(len(weights[k])):
                    pull_to(weights[k][j], start_weights[k][j], x.dtype.type(pull))
                pull_to(biases[k], start_biases[k], x.dtype.type(pull))
            take_step(weights[k], biases[k], d, h, of, skip, places, factors)


def _compiled(function: Compiled, *more: str) -> Compiled:
    """A function compiled; itself without numba. Products and sums may be rounded once."""
    return compile_(function, fastmath={"contract", *more}) or function


forward, is_finite = _compiled(_forward, "reassoc"), _compiled(_is_finite, "reassoc")
add_rows, take_step, below = _compiled(_add_rows), _compiled(_take_step), _compiled(_below)
relu, through_relu = _compiled(_relu), _compiled(_through_relu)
at_scores, pull_to, train = _compiled(_at_scores), _compiled(_pull_to), _compiled(_train)
