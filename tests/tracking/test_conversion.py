from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from ropewalk.tracking.conversion import NO_NAMES, add_numbers, numbers_of, to_number
from ropewalk.tracking.records import packed, unpacked


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
    first, numbers = numbers_of({"a": 1.0, "b": 2.0}, NO_NAMES)
    again, others = numbers_of({"a": 3.0, "b": 4.0}, first)
    assert again.names is first.names and (numbers, others) == (packed([1.0, 2.0]), packed([3.0, 4.0]))
    assert unpacked(numbers_of({}, first)[1]) == []


@pytest.mark.parametrize(
    ("values", "names", "numbers"),
    [
        ({"b": 1.0, "a": 2.0}, ["b", "a"], [1.0, 2.0]),
        ({"a": 1, "b": {"c": 2.0}}, ["a", "b/c"], [1.0, 2.0]),
        ({"a": np.array([1.0]), "b": True}, ["a", "b"], [1.0, 1.0]),
        ({"a": 5.0, "b": torch.tensor(0.5)}, ["a", "b"], [5.0, 0.5]),
        ({}, [], []),
    ],
)
def test_values_of_another_kind_than_before_are_taken_as_they_are(
    values: dict[str, Any], names: list[str], numbers: list[float]
) -> None:
    before, _ = numbers_of({"a": 1.0, "b": 2.0}, NO_NAMES)
    found, given = numbers_of(values, before)
    assert (found.names, unpacked(given)) == (names, numbers)
    assert unpacked(numbers_of({"a": 7.0, "b": 8.0}, found)[1]) == [7.0, 8.0]


def test_a_value_that_is_no_number_is_refused_among_names_that_were_logged_before() -> None:
    before, _ = numbers_of({"a": 1.0, "b": 2.0}, NO_NAMES)
    with pytest.raises(TypeError, match="metric 'b' is 'x' of type str"):
        numbers_of({"a": 1.0, "b": "x"}, before)
    with pytest.raises(TypeError, match="name of a metric"):
        numbers_of({3: 1.0}, NO_NAMES)  # type: ignore[dict-item]


def test_tensors_that_need_gradients_are_logged_without_a_warning() -> None:
    """PyTorch warns of `float(tensor)`."""
    loss, logged = torch.tensor(0.5, requires_grad=True), NO_NAMES
    for _ in range(3):
        logged, numbers = numbers_of({"loss": loss}, logged)
        assert unpacked(numbers) == [0.5]
