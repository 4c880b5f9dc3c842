"""Read a mapping written as JSON or as a Python literal, the two forms of a Comet Optimizer config.

A literal may have comments, trailing commas, single quotes, tuples, `True` and `None`. Nothing in
it is executed. JSON's `true`, `false` and `null` are valid in it too, so JSON with comments is.
"""

import ast
import json
import warnings
from collections.abc import Iterable
from typing import Any

_NAMES = {"true": True, "false": False, "null": None}


def parse(text: str) -> dict[str, Any]:
    """The mapping in a text.

    >>> parse("{'values': (8, 16,), 'log': True}  # a comment")
    {'values': [8, 16], 'log': True}

    Returns:
        Plain values as of JSON: tuples become lists.

    Raises:
        ValueError: the text is neither JSON nor a literal, is no mapping, or has a key twice or a
            value that JSON has not, such as a set; the message names the line.
    """
    try:
        value = json.loads(text, object_pairs_hook=_pairs)
    except json.JSONDecodeError:
        value = _literal(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if isinstance(value, dict):
        return value
    raise ValueError(f"expected a mapping, {{…}}, got {type(value).__name__}")


def _literal(text: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # of unknown escapes in strings
            tree = ast.parse(text.strip(), mode="eval")
        return _plain(tree.body)
    except SyntaxError as error:
        raise ValueError(f"line {error.lineno}: {error.msg}") from None
    except (RecursionError, MemoryError):
        raise ValueError("it is nested too deeply") from None


def _plain(node: ast.expr) -> Any:
    match node:
        case ast.Dict(keys, values):
            names = [_key(key, node) for key in keys]
            return _pairs(zip(names, map(_plain, values), strict=True), f"line {node.lineno}: ")
        case ast.List(items) | ast.Tuple(items):
            return [_plain(item) for item in items]
        case ast.Name(name) if name in _NAMES:
            return _NAMES[name]
    try:
        value = ast.literal_eval(node)
    except ValueError:
        value = ...
    if isinstance(value, str | int | float | None):
        return value
    raise ValueError(
        f"line {node.lineno}: expected a number, a text, True, False, None, a list or a mapping, "
        f"got {ast.unparse(node)[:60]}"
    )


def _key(key: ast.expr | None, inside: ast.Dict) -> str:
    if isinstance(key, ast.Constant) and isinstance(key.value, str):
        return key.value
    got = "**" if key is None else ast.unparse(key)[:60]
    raise ValueError(f"line {(key or inside).lineno}: expected a name in quotes, got {got}")


def _pairs(pairs: Iterable[tuple[str, Any]], where: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{where}{name!r} occurs twice in a mapping")
        found[name] = value
    return found
