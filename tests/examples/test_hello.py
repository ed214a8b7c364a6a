"""Two nodes talk, and what the one prints reaches the launcher's output."""

from __future__ import annotations

import types
from collections.abc import Callable

import pytest

LoadExample = Callable[[str], types.ModuleType]


def test_a_greeter_counts_its_guests_without_any_node(load_example: LoadExample) -> None:
    greeter = load_example("hello").Greeter("Servus")
    assert greeter.greet("Ada") == "Servus, Ada! You are guest number 1."
    assert greeter.greet("Grace") == "Servus, Grace! You are guest number 2."


def test_the_visitor_prints_what_the_greeter_answers(
    load_example: LoadExample, mode: str, capfd: pytest.CaptureFixture[str]
) -> None:
    load_example("hello").main(mode=mode)
    output, errors = capfd.readouterr()
    greetings = [f"Hello, {name}! You are guest number {i}." for i, name in enumerate(["Ada", "Grace", "Barbara"], 1)]
    assert [line[line.index("Hello") :] for line in output.splitlines() if "Hello" in line] == greetings
    assert errors == ""
