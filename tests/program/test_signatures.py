"""Arguments that do not fit, told before the call."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from ropewalk.program.signatures import misfit


class Learner:
    def __init__(self, rate: float, *, capacity: int = 10) -> None: ...


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        ((0.1,), {"capacity": 3}, ""),
        (
            (0.1,),
            {"capcity": 3},
            "got an unexpected argument 'capcity'; did you mean 'capacity'? It takes (rate, *, capacity=10)",
        ),
        ((0.1,), {"zzz": 3}, "got an unexpected argument 'zzz'. It takes (rate, *, capacity=10)"),
        ((), {}, "misses the argument 'rate'. It takes (rate, *, capacity=10)"),
        ((1, 2), {}, "takes 1 positional arguments, but 2 were given. It takes (rate, *, capacity=10)"),
        ((1,), {"rate": 2}, "got the argument 'rate' twice, by position and by name. It takes (rate, *, capacity=10)"),
    ],
)  # fmt: skip
def test_the_reason_names_the_argument(args: Any, kwargs: Any, said: str) -> None:
    assert misfit(Learner, args, kwargs) == (f"Learner.__init__() {said}" if said else "")


def test_functions_partials_and_silent_classes() -> None:
    def act(x: int, y: int, /, *rest: int, **more: int) -> None: ...

    assert misfit(act, (1, 2, 3, 4), {"z": 1, "x": 1}) == ""
    assert misfit(act, (), {}).startswith("act() misses the arguments 'x', 'y'")
    assert misfit(functools.partial(Learner, 0.1), (), {"capacity": 1}) == ""
    assert misfit(functools.partial(Learner, 0.1), (3,), {}).startswith("Learner.__init__() takes")
    assert misfit(dict, (), {"a": 1}) == "", "a class that does not say what it takes is believed"
