"""Code that travels by value keeps the name of its file, which cloudpickle leaves out from 3.1.3 on."""

from __future__ import annotations

import pickle
import types
from collections.abc import Callable
from typing import Any

import pytest

from ropewalk.transport.by_value import dumps_by_value
from ropewalk.transport.serialization import dumps_code, loads


def nested() -> Callable[[], Callable[[], Any]]:
    def outer() -> Callable[[], Any]:
        def inner() -> None:
            raise LookupError

        return inner

    return outer


def through_task(function: Any) -> Any:
    payload = dumps_code(function).payload
    return loads(payload.pickle, payload.buffers)


@pytest.mark.parametrize("travel", [through_task, lambda one: pickle.loads(dumps_by_value(one))], ids=["task", "plain"])
def test_code_keeps_the_name_of_its_file(travel: Callable[[Any], Any]) -> None:
    found: types.FunctionType = travel(nested())
    assert found is not nested()
    assert found.__code__.co_filename == found().__code__.co_filename == __file__
    with pytest.raises(LookupError) as caught:
        found()()
    assert "raise LookupError" in str(caught.traceback[-1].statement)


def test_the_same_code_gives_the_same_bytes() -> None:
    """Constants of a pool are known by these bytes."""
    assert dumps_by_value(nested()) == dumps_by_value(nested())
    moved = nested()
    moved.__code__ = moved.__code__.replace(co_filename="elsewhere.py")
    assert dumps_by_value(moved) != dumps_by_value(nested())
