"""No test that gates compares time that it has measured with an upper bound: a busy machine would fail it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
CLOCKS = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time", "time"}
#: Names of bounds that end a wait that would last for ever.
PATIENCE = ("timeout", "patience", "deadline", "due")


def is_measured(node: ast.expr, names: set[str]) -> bool:
    """Whether an expression has a difference of two readings of a clock, or one of these names."""
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and each.id in names:
            return True
        if isinstance(each, ast.BinOp) and isinstance(each.op, ast.Sub) and any(map(is_reading, ast.walk(each))):
            return True
    return False


def is_reading(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CLOCKS


def upper_bounds(source: str) -> Iterator[int]:
    """Lines of assertions that measured time is less than something, outside of tests that are marked `timing`."""
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef) or "timing" in map(last_name, function.decorator_list):
            continue
        inside = list(ast.walk(function))
        names: set[str] = set()
        for each in inside:
            if isinstance(each, ast.Assign) and is_measured(each.value, set()):
                names |= {target.id for target in each.targets if isinstance(target, ast.Name)}
        for each in inside:
            if isinstance(each, ast.Assert):
                for compared in ast.walk(each.test):
                    if isinstance(compared, ast.Compare) and has_upper_bound(compared, names):
                        yield each.lineno


def last_name(decorator: ast.expr) -> str:
    return decorator.attr if isinstance(decorator, ast.Attribute) else ""


def has_upper_bound(compared: ast.Compare, names: set[str]) -> bool:
    sides = [compared.left, *compared.comparators]
    for left, relation, right in zip(sides, compared.ops, sides[1:], strict=False):
        small, large = (right, left) if isinstance(relation, ast.Gt | ast.GtE) else (left, right)
        is_order = isinstance(relation, ast.Gt | ast.GtE | ast.Lt | ast.LtE)
        if is_order and is_measured(small, names) and not ast.unparse(large).lower().startswith(PATIENCE):
            return True
    return False


@pytest.mark.parametrize(
    ("body", "is_found"),
    [
        ("assert time.monotonic() - began < 2", True),
        ("took = time.perf_counter() - began\n    assert 0 < took <= 2", True),
        ("assert 2 > (time.monotonic_ns() - began) / 1e9", True),
        ("assert time.monotonic() - began >= 2", False),
        ("assert time.monotonic() < due", False),
        ("assert time.monotonic() - began < timeout_s", False),
        ("assert clock.now - began < 2", False),
    ],
)
def test_an_upper_bound_is_found(body: str, is_found: bool) -> None:
    test = f"def test_some():\n    began = time.monotonic()\n    {body}\n"
    assert bool(list(upper_bounds(test))) is is_found
    assert not list(upper_bounds("@pytest.mark.timing\n" + test))


def test_no_assertion_bounds_measured_time_from_above() -> None:
    found: list[str] = []
    # Not in tests/lab, whose own tests measure the links that they emulate.
    for path in sorted(set(TESTS.rglob("*.py")) - set(TESTS.glob("lab/*"))):
        source = path.read_text()
        if any(f".{clock}()" in source for clock in CLOCKS):
            found += [f"{path.relative_to(TESTS)}:{line}" for line in upper_bounds(source)]
    assert not found, "order, counts and virtual time say the same; what is about time is marked `timing`"
