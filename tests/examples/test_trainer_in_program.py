"""A node trains in a pipeline, another one examines each checkpoint meanwhile."""

from __future__ import annotations

import types
from collections.abc import Callable

import pytest

from tests.needed_packages import needs

needs("torch", "sklearn")

LoadExample = Callable[[str], types.ModuleType]


@pytest.mark.soak  # two processes that import torch; the tests of trainers have one in a program by default
@pytest.mark.usefixtures("one_thread")
def test_each_checkpoint_is_examined_and_the_last_is_better_than_the_first(
    load_example: LoadExample, mode: str
) -> None:
    example = load_example("trainer_in_program")
    found = example.main(mode)
    assert len(found) == example.EPOCHS and found[0] < found[-1]
