from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from ropewalk.tracking.conversion import add_numbers, numbers_of, to_number
from ropewalk.tracking.records import packed


@pytest.mark.parametrize(
    "value",
    [2.0, 2, np.float32(2), np.int64(2), np.array([[2.0]]), torch.tensor(2), torch.tensor([2.0], requires_grad=True)],
)
def test_numbers_of_all_libraries_become_floats(value: Any) -> None:
    assert to_number(value, "loss") == 2.0
    assert type(to_number(value, "loss")) is float


def test_truth_is_one() -> None:
    assert (to_number(True, "ok"), to_number(np.bool_(False), "ok")) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (torch.ones(3), r"'loss' is a Tensor of shape \(3,\)"),
        ("0.5", "'loss' is '0.5' of type str"),
        (None, "NoneType"),
    ],
)
def test_what_is_no_number_is_refused_by_its_name(value: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        to_number(value, "loss")


def test_nested_names_are_joined() -> None:
    names: list[str] = []
    numbers: list[float] = []
    add_numbers({"loss": {"policy": 1, "value": {"first": 0.5}}, "lr": 2.0}, names, numbers)
    assert dict(zip(names, numbers, strict=True)) == {"loss/policy": 1.0, "loss/value/first": 0.5, "lr": 2.0}


def test_names_are_strings() -> None:
    with pytest.raises(TypeError, match="name of a metric is a string, not 3"):
        add_numbers({3: 1.0}, [], [])  # type: ignore[dict-item]


def test_names_that_are_logged_again_are_the_same_list() -> None:
    names, numbers = numbers_of({"a": 1.0, "b": 2.0}, [])
    again, others = numbers_of({"a": 3.0, "b": 4.0}, names)
    assert again is names and (numbers, others) == (packed([1.0, 2.0]), packed([3.0, 4.0]))
    assert numbers_of({"b": 1.0, "a": 2.0}, names) == (["b", "a"], packed([1.0, 2.0]))
    assert numbers_of({"a": 1, "b": {"c": 2.0}}, names) == (["a", "b/c"], packed([1.0, 2.0]))
    assert numbers_of({}, names) == ([], b"")
    with pytest.raises(TypeError, match="name of a metric"):
        numbers_of({3: 1.0}, [])  # type: ignore[dict-item]
