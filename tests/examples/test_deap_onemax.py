"""DEAP over a pool's map: the same individuals as in one process."""

from __future__ import annotations

import types
from collections.abc import Callable

import pytest

pytest.importorskip("deap")
LoadExample = Callable[[str], types.ModuleType]
pytestmark = pytest.mark.usefixtures("shared_session")


def test_the_pool_changes_nothing_but_who_evaluates(load_example: LoadExample) -> None:
    example = load_example("deap_onemax")
    here = example.evolve(example.make_toolbox(), seed=1, generations=10)
    assert example.main(generations=10) == here


def test_it_evolves_ones(load_example: LoadExample, capsys: pytest.CaptureFixture[str]) -> None:
    assert sum(load_example("deap_onemax").main(generations=40)) >= 57
    assert capsys.readouterr().out.splitlines()[0].endswith("of 60 bits are ones after 40 generations")
