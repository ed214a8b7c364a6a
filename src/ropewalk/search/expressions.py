"""`Expression`: a constraint that is written as a text, and evaluated without executing it as code.

    Expression("model.layers * model.width <= 4096 and batch % 8 == 0")

It has names of hyperparameters, numbers, texts, True, False and None; + - * / // % and **; comparisons, `in`, `and`,
`or`, `not`; and the functions abs, min, max, round, log, log2 and sqrt. Nothing else is accepted, so that a file with a
constraint is data: an expression cannot call, import or read anything, nor take unbounded time or memory.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from ropewalk.errors import SearchInvalid

_LONGEST = 1000
"""Characters of an expression; Python's parser is not protected from deeply nested texts."""

_ARITHMETIC: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda one, other: one / other,
    ast.FloorDiv: lambda one, other: one // other,
    ast.Mod: operator.mod,
    ast.Pow: lambda base, exponent: float(base) ** float(exponent),  # of integers, it could take hours
}
_COMPARISONS: dict[type[ast.AST], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda item, items: item in items,
    ast.NotIn: lambda item, items: item not in items,
}
_MOST_DIGITS = _LONGEST
"""Digits to which is rounded, before or after the point: to round an integer to a billion of them takes hours."""


def _rounded(value: Any, digits: Any = None) -> Any:
    if digits is None:
        return round(value)
    return round(value, max(-_MOST_DIGITS, min(_MOST_DIGITS, digits)) if isinstance(digits, int) else digits)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "min": min,
    "max": max,
    "round": _rounded,
    "log": math.log,
    "log2": math.log2,
    "sqrt": math.sqrt,
}


class Expression:
    """A constraint of a space: calling it with a configuration says whether it holds.

    It holds if one of its hyperparameters is not active, since it says nothing about such a configuration.

    Args:
        text: the expression, with dotted names of hyperparameters.

    Raises:
        SearchInvalid: the text is no such expression; the message shows the part that is not accepted.

    Example:
        >>> limit = Expression("layers * width <= 1024")
        >>> limit({"layers": 4, "width": 256}), limit({"layers": 8, "width": 256})
        (True, False)
    """

    def __init__(self, text: str) -> None:
        self.text = text
        if len(text) > _LONGEST:
            raise SearchInvalid(f"the constraint {text[:60]!r}... has {len(text)} characters, the limit is {_LONGEST}")
        try:
            self._tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise SearchInvalid(f"the constraint {text!r} is not an expression: {error}") from None
        self.names = frozenset(_names(self._tree, text))
        """Dotted names of the hyperparameters in it."""

    def __call__(self, values: Mapping[str, Any]) -> bool:
        """Evaluate it.

        Args:
            values: a nested configuration.

        Raises:
            SearchInvalid: it cannot be evaluated for these values, such as a division by 0.
        """
        try:
            found = {name: _looked_up(name, values) for name in self.names}
        except KeyError:
            return True
        try:
            return bool(_value(self._tree, found))
        except (ArithmeticError, TypeError, ValueError) as error:
            raise SearchInvalid(f"the constraint {self.text!r} cannot be evaluated for {found}: {error}") from None

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"


def _looked_up(name: str, values: Mapping[str, Any]) -> Any:
    found: Any = values
    for level in name.split("."):
        found = found[level]
    return found


def _names(node: ast.AST, text: str) -> Iterator[str]:
    """Yield the names in an expression, after checking that nothing else is in it than what `_value` evaluates."""
    match node:
        case ast.Name() | ast.Attribute():
            yield _dotted(node, text)
        case ast.Constant(value=bool() | int() | float() | str() | None):
            pass
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            yield from _names(left, text)
            yield from _names(right, text)
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.UAdd(), operand=operand):
            yield from _names(operand, text)
        case ast.BoolOp(values=parts) | ast.List(elts=parts) | ast.Tuple(elts=parts):
            for part in parts:
                yield from _names(part, text)
        case ast.Compare(left=left, ops=ops, comparators=others) if all(type(op) in _COMPARISONS for op in ops):
            for part in (left, *others):
                yield from _names(part, text)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            for part in args:
                yield from _names(part, text)
        case _:
            shown = ast.unparse(node)
            raise SearchInvalid(
                f"the constraint {text!r} contains {shown!r}, which is not accepted; it may have names, numbers, "
                f"texts, arithmetic, comparisons, and, or, not, and the functions {', '.join(_FUNCTIONS)}"
            )


def _dotted(node: ast.AST, text: str) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=name):
            return f"{_dotted(value, text)}.{name}"
        case _:
            raise SearchInvalid(f"the constraint {text!r} contains {ast.unparse(node)!r}, which is not a dotted name")


def _value(node: ast.AST, values: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.BinOp(left=left, op=op, right=right):
            return _ARITHMETIC[type(op)](_number(_value(left, values)), _number(_value(right, values)))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _value(operand, values)
        case ast.UnaryOp(op=op, operand=operand):
            number = _number(_value(operand, values))
            return -number if isinstance(op, ast.USub) else number
        case ast.BoolOp(op=ast.And(), values=parts):
            return all(_value(part, values) for part in parts)
        case ast.BoolOp(values=parts):
            return any(_value(part, values) for part in parts)
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return [_value(part, values) for part in parts]
        case ast.Compare(left=left, ops=ops, comparators=others):
            return _compared(_value(left, values), ops, others, values)
        case ast.Call(func=ast.Name(id=name), args=args):
            return _FUNCTIONS[name](*(_value(part, values) for part in args))
        case _:
            return values[_dotted(node, "")]


def _compared(left: Any, ops: list[ast.cmpop], others: list[ast.expr], values: Mapping[str, Any]) -> bool:
    for op, other in zip(ops, others, strict=True):
        right = _value(other, values)
        if not _COMPARISONS[type(op)](left, right):
            return False
        left = right
    return True


def _number(value: Any) -> int | float:
    """Let only numbers into arithmetic: a text times 10**9 would take all memory."""
    if not isinstance(value, int | float):
        raise TypeError(f"{cast(object, value)!r} is not a number")
    return value
