"""Constraints that are texts: what they compute, and that they can do nothing else."""

from __future__ import annotations

import pytest

from ropewalk.errors import SearchInvalid
from ropewalk.search.expressions import Expression

VALUES = {"a": 4, "b": 0.5, "name": "sgd", "flag": True, "nothing": None, "model": {"layers": 3}}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("a * b == 2", True),
        ("a // 3 + a % 3 - 1 / 2 == 1.5", True),
        ("2 ** a == 16.0 and -a < 0 and +a > 0", True),
        ("1 < a <= 4 < 5", True),
        ("1 < a < 4", False),
        ("model.layers * a >= 12", True),
        ("name in ('adam', 'sgd') and name not in ['lbfgs']", True),
        ("name == 'sgd' or a / 0 > 1", True),
        ("not flag", False),
        ("nothing == None and flag == True", True),
        ("max(a, 7) == 7 and min(a, b) == b and abs(-a) == 4 and round(b + 0.1) == 1", True),
        ("log2(a) == sqrt(a) and log(1) == 0", True),
        ("momentum > 0.5", True),  # not active, so that it says nothing
        ("optimizer.momentum > 0.5", True),
    ],
)
def test_they_compute_what_python_would(text: str, holds: bool) -> None:
    assert Expression(text)(VALUES) is holds


def test_names_are_dotted() -> None:
    assert Expression("model.layers * a + max(b, 1) > 2").names == {"model.layers", "a", "b"}


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "open('/etc/passwd')",
        "a.__class__()",
        "[x for x in (1, 2)]",
        "(lambda: 1)()",
        "a if b else 1",
        "f'{a}'",
        "a := 3",
        "model['layers']",
        "a << 1000000000",
        "a & 1",
        "~a",
        "min(*a)",
        "round(number=a)",
        "exec",
        "b'x' == a",
        "{1: 2}",
        "...",
    ],
)
def test_nothing_else_is_accepted(text: str) -> None:
    if text == "exec":  # a name like any other, which no space has
        assert Expression(text).names == {"exec"}
        return
    with pytest.raises(SearchInvalid):
        Expression(text)


@pytest.mark.parametrize(
    "text", ["'x' * 10000000000 == 1", "name * 2 == 1", "10.0 ** 400 > 1", "a / 0 > 1", "log(0) > a"]
)
def test_what_cannot_be_evaluated_is_said_with_the_values(text: str) -> None:
    with pytest.raises(SearchInvalid, match="cannot be evaluated for"):
        Expression(text)(VALUES)


def test_a_power_of_integers_takes_no_time() -> None:
    with pytest.raises(SearchInvalid, match="cannot be evaluated"):
        Expression("9 ** 9 ** 9 ** 9 > a")(VALUES)


@pytest.mark.parametrize("digits", [-(10**9), 10**9, -(10**20)])
def test_rounding_to_a_billion_digits_takes_no_time(digits: int) -> None:
    assert Expression(f"round(n, {digits}) == {0 if digits < 0 else 'n'}")({"n": 12})


def test_texts_that_would_exhaust_the_parser_are_refused() -> None:
    with pytest.raises(SearchInvalid, match="has 1001 characters, the limit is 1000"):
        Expression("(" * 1001)
    with pytest.raises(SearchInvalid, match="not an expression"):
        Expression("(" * 999)
    with pytest.raises(SearchInvalid, match="not an expression"):
        Expression("a >")
