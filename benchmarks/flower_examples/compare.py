"""Compares two records of hooks/recorded.py."""

import numpy as np


def compare(expected, found):
    """The largest difference of all numbers, how many there are, and what cannot be compared.

    Args:
        expected: path of one record.
        found: path of the other.

    Returns:
        Largest absolute difference, the name of its value, count of numbers, and a list of texts:
        values of only one record, other shapes, other texts, NaN in one.
    """
    largest, where, count, other = 0.0, "", 0, []
    with np.load(expected) as a, np.load(found) as b:
        other += [f"only in one: {name}" for name in sorted(set(a.files) ^ set(b.files))]
        for name in sorted(set(a.files) & set(b.files)):
            x, y = a[name], b[name]
            if x.shape != y.shape:
                other.append(f"{name}: shapes {x.shape} and {y.shape}")
            elif x.dtype.kind == "U" or y.dtype.kind == "U":
                if not np.array_equal(x, y):
                    other.append(f"{name}: other text")
            else:
                count += x.size
                if np.array_equal(x, y, equal_nan=x.dtype.kind in "fc"):
                    continue
                difference = float(np.max(np.abs(x.astype(float) - y.astype(float))))
                if np.isnan(difference):
                    other.append(f"{name}: a NaN in one")
                elif difference > largest:
                    largest, where = difference, name
    return largest, where, count, other


def errors_of(record):
    """The errors with which nodes answered."""
    with np.load(record) as found:
        return [f"{n}: {found[n]}" for n in found.files if n.startswith("error/")]
