"""Marks of tests that take long."""

import pytest


def sampled(cases, every, *, first=0, of_one=False):
    """Cases of which `make long` runs every n-th, and `make longest` the others.

    Args:
        cases: values of one parameter, or tuples of the values of several.
        every: n.
        first: index of the first that `make long` runs.
        of_one: tuples are values of one parameter, too.
    """
    return [
        case
        if number % every == first
        else pytest.param(
            *(case if isinstance(case, tuple) and not of_one else (case,)),
            marks=pytest.mark.longest,
        )
        for number, case in enumerate(cases)
    ]
