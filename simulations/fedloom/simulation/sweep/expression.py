"""Arithmetic that derives one setting from others, such as `0.05 * train.batch_size / 8`.

A sweep file may be untrusted: the text is parsed by Python's `ast`, only listed operations are
allowed, and nothing is evaluated as code. Invariant: a constructed `Expression` can fail only
because of its numbers.
"""

import ast
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fedloom.protocol.errors import UsageError

MAX_TEXT = 1000
"""Characters of an expression; it also limits the recursion of `ast`."""
MAX_POWER = 1024
"""Largest base and exponent of exact integer powers: 9 ** 9 ** 9 would never end."""

FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "min": min,
    "max": max,
    "sqrt": math.sqrt,
    "log": math.log,
    "exp": math.exp,
    "round": round,
}
_UNARY: Mapping[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}


def _power(base: float, exponent: float) -> float:
    if max(abs(base), abs(exponent)) > MAX_POWER:
        base = float(base)
    return base**exponent  # type: ignore[no-any-return]


_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: _power,
}


@dataclass(frozen=True, slots=True)
class Expression:
    """A formula over the values of parameters.

    >>> Expression("0.05 * train.batch_size / 8").value({"train.batch_size": 32})
    0.2
    >>> sorted(Expression("max(a, b) ** 2").names)
    ['a', 'b']

    Attributes:
        text: numbers, dotted names, `+ - * / // **`, parentheses, and min, max, sqrt, log, exp and
            round.

    Raises:
        UsageError: the text has other parts.
    """

    text: str

    def __post_init__(self) -> None:
        for _ in _names(self._tree()):
            pass

    @property
    def names(self) -> frozenset[str]:
        """The names it uses."""
        return frozenset(_names(self._tree()))

    def value(self, values: Mapping[str, Any]) -> int | float:
        """Compute the value.

        Raises:
            UsageError: a name is missing or not a number, or the result is not finite.
        """
        try:
            result = _evaluate(self._tree(), values)
        except (ArithmeticError, ValueError, TypeError) as error:
            raise UsageError(f"{self.text!r} cannot be computed: {error}.") from error
        if not isinstance(result, int | float) or not math.isfinite(result):
            raise UsageError(f"Expected {self.text!r} to be a finite number, got {result}.")
        return result

    def _tree(self) -> ast.expr:
        if len(self.text) > MAX_TEXT:
            raise UsageError(f"Expected a formula of at most {MAX_TEXT} characters.")
        try:
            return ast.parse(self.text.strip(), mode="eval").body
        except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
            raise UsageError(f"Expected a formula, got {self.text!r}: {error}.") from error


def _names(node: ast.AST) -> list[str]:
    """Names in a tree; raises for operations that are not allowed."""
    match node:
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=int() | float()):
            return []
        case ast.Name() | ast.Attribute():
            return [_dotted(node)]
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
            return _names(operand)
        case ast.BinOp(op=op, left=left, right=right) if type(op) in _BINARY:
            return _names(left) + _names(right)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in FUNCTIONS and args:
            return [each for arg in args for each in _names(arg)]
        case _:
            pass
    raise UsageError(
        f"Expected numbers, names, + - * / // ** and {', '.join(FUNCTIONS)}(…) in a formula, "
        f"got {ast.unparse(node)!r}."
    )


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    if isinstance(node, ast.Name):
        return node.id
    raise UsageError(f"Expected a name such as train.batch_size, got {ast.unparse(node)!r}.")


def _evaluate(node: ast.AST, values: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.UnaryOp(op=op, operand=operand):
            return _UNARY[type(op)](_evaluate(operand, values))
        case ast.BinOp(op=op, left=left, right=right):
            return _BINARY[type(op)](_evaluate(left, values), _evaluate(right, values))
        case ast.Call(func=ast.Name(id=name), args=args):
            return FUNCTIONS[name](*(_evaluate(arg, values) for arg in args))
        case _:
            return _number(_dotted(node), values)


def _number(name: str, values: Mapping[str, Any]) -> int | float:
    if name not in values:
        known = ", ".join(sorted(values)) or "none"
        raise UsageError(f"Expected the name of a parameter in a formula ({known}), got {name!r}.")
    value = values[name]
    if not isinstance(value, int | float):
        raise UsageError(f"A formula needs {name} as a number, got {value!r}.")
    return value
