"""A caller's evaluation of the model after a round, whose numbers enter the record."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

from fedloom.protocol.errors import UsageError
from fedloom.protocol.user_code import summarised
from fedloom.simulation.kernels.metrics import Value, check_name, numbers
from fedloom.strategies import Params

Evaluate: TypeAlias = Callable[[int, Params], Mapping[str, Value]]
"""Maps a round's number and the model after it, read-only arrays by name, to numbers by name.
None in place of a number: it is undefined."""


def evaluated(
    evaluate: Evaluate, number: int, params: Params, test: Mapping[str, float]
) -> dict[str, float]:
    """The metrics of a model by a caller's function. NaN and infinities count: models diverge.

    Args:
        evaluate: the function.
        number: of the round.
        params: the model after it.
        test: metrics on the test examples, whose names the function may not use.

    Raises:
        UsageError: the function raised, or returned something else than numbers by name.
    """
    of = f"the model after round {number}"
    try:
        found = evaluate(number, read_only(params))
    except Exception as error:
        raise UsageError(f"evaluate failed on {of}: {summarised(error)}. Correct it.") from error
    if not isinstance(found, Mapping):
        raise UsageError(
            f"evaluate returned {type(found).__name__} on {of}: expected numbers by name, such as "
            '{"f1": 0.9}.'
        )
    values: dict[str, float] = {}
    for name, value in found.items():
        check_name(name)
        if name in test:
            raise UsageError(
                f"evaluate returned {name!r}, which the test examples give already. Choose another "
                "name."
            )
        values |= numbers(name, value, of, finite=False)
    return values


def read_only(params: Params) -> Params:
    """Views of a model that cannot be written to."""
    views = {name: array.view() for name, array in params.items()}
    for view in views.values():
        view.flags.writeable = False
    return views
