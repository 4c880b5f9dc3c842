"""Check what a function takes before it is called: not at the end of the first round."""

import inspect
from collections.abc import Callable
from typing import Any

from fedloom.protocol.errors import UsageError


def check_takes(name: str, function: Callable[..., Any], *arguments: str) -> None:
    """Refuse a value that cannot be called with positional arguments of this number.

    Args:
        name: of the function, for errors.
        function: to check; one without a signature, such as of C code, is accepted.
        arguments: their names, for errors.

    Raises:
        UsageError: it is no function, or takes other arguments.
    """
    wanted = f"a function of ({', '.join(arguments)})"
    if not callable(function):
        raise UsageError(f"{name}: expected {wanted}, got {type(function).__name__}.")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*arguments)
    except TypeError:
        raise UsageError(f"{name}: expected {wanted}, got one of {signature}.") from None
