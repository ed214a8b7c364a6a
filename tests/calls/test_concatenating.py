"""Calls that become one, each of which brings any number of rows."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.calls.concatenating import Concatenating

ROWS = Concatenating()


@dataclasses.dataclass
class Observation:
    image: Any
    name: str = "camera"


def one(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, kwargs


def test_rows_of_calls_are_joined_in_containers_as_well_and_other_values_are_handed_over_once() -> None:
    # Workers with 4 and 8 environments could not share a batch.
    calls = [
        one({"x": np.full((rows, 3), rows), "mask": None}, Observation(np.ones((rows, 2, 2))), temperature=0.5)
        for rows in (4, 8, 1)
    ]
    assert ROWS.split_compatible(calls) == ({0: 4, 1: 8, 2: 1}, {})
    (tree, observation), kwargs = ROWS.merge(calls)
    assert tree["x"].shape == (13, 3) and tree["x"][:, 0].tolist() == [4] * 4 + [8] * 8 + [1] and tree["mask"] is None
    assert observation.image.shape == (13, 2, 2) and observation.name == "camera" and kwargs == {"temperature": 0.5}


def test_a_call_by_itself_is_not_copied() -> None:
    x = np.ones((2, 3))
    assert ROWS.merge([one(x)])[0][0] is x


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (one(5, "text"), "needs an array among its arguments"),
        (one(np.array(1.0)), r"args\[0\] is an array of shape \(\) .* and has no rows; .* x\[None\]"),
        (
            one(np.ones(3), y=[np.ones((4, 1))]),
            r"args\[0\] is an array of shape \(3,\).* and kwargs\['y'\]\[0\] is an array",
        ),
    ],
)
def test_a_call_without_one_number_of_rows_is_refused_by_itself(call: Any, words: str) -> None:
    fitting, odd = ROWS.split_compatible([one(np.ones(2)), call])
    assert fitting == {0: 2}
    with pytest.raises(ValueError, match=words):
        raise odd[1]


def test_calls_whose_other_values_differ_run_one_after_the_other() -> None:
    # An evaluator with greedy=True and actors without ended each other: whoever was fewer in the batch was refused.
    calls = [one(np.ones((rows, 2)), temperature=t) for rows, t in ((1, 0.5), (2, 0.7), (3, 0.5), (1, 1), (1, True))]
    fitting, odd = ROWS.split_compatible(calls)
    assert (fitting, odd) == ({0: 1, 1: 2, 2: 3, 3: 1, 4: 1}, {})
    sizes = list(fitting.values())
    assert ROWS.groups(calls, sizes, 12) == [[0, 2], [1], [3], [4]]
    assert ROWS.groups(calls, sizes, 3) == [[0], [2], [1], [3], [4]]
    same: set[int] = set()  # has no hash
    assert ROWS.groups([one(np.ones(1), same), one(np.ones(1), same)], [1, 1], 12) == [[0, 1]]
    assert ROWS.groups([one(np.ones(1), set()), one(np.ones(1), set())], [1, 1], 12) == [[0], [1]]
    nested = [one({"x": np.ones(1), "mode": mode}) for mode in ("a", "b", "a")]
    assert ROWS.groups(nested, [1, 1, 1], 12) == [[0, 2], [1]]
    by_position = [one(np.ones(1), greedy) for greedy in (True, False, True)]
    assert ROWS.groups(by_position, [1, 1, 1], 12) == [[0, 2], [1]]


def test_arrays_that_differ_in_more_than_their_rows_do_not_fit() -> None:
    fitting, odd = ROWS.split_compatible([one(np.ones((rows, width))) for rows, width in ((1, 2), (2, 2), (3, 5))])
    assert fitting == {0: 1, 1: 2} and "args[0] is an array of shape (3, 5)" in str(odd[2])
    assert str(odd[2]).endswith("may differ in their first axis only")


def test_a_batch_has_so_many_rows_at_most_and_a_larger_call_goes_alone() -> None:
    sizes = [4, 8, 1, 20, 3, 10, 0, 2]
    calls = [one(np.ones(rows)) for rows in sizes]
    assert ROWS.groups(calls, sizes, 12) == [[0, 1], [2], [3], [4], [5, 6, 7]]
    assert ROWS.groups([], [], 12) == []


def test_a_result_of_another_length_is_refused_with_its_place() -> None:
    with pytest.raises(ValueError, match=r"a batch of 3 rows needs a result for each, but its result\['a'\] is"):
        ROWS.divide({"a": np.ones(2)}, [1, 2])
    with pytest.raises(ValueError, match=r"but its result\['a'\]\[1\] is an array of shape \(2,\)"):
        ROWS.divide({"a": (np.ones(3), np.ones(2))}, [1, 2])
    with pytest.raises(TypeError, match="its result is of type str"):
        ROWS.divide("abc", [1, 2])


@given(sizes=st.lists(st.integers(0, 5), min_size=1, max_size=5), width=st.integers(1, 3))
def test_taking_apart_undoes_joining(sizes: list[int], width: int) -> None:
    rng = np.random.default_rng(sum(sizes))
    arrays = [rng.normal(size=(size, width)) for size in sizes]
    (tree,), _ = ROWS.merge([one({"x": array, "n": [array[:, 0]]}) for array in arrays])
    result = {"y": tree["x"] * 2, "list": tree["n"][0].tolist(), "none": None}
    for array, part in zip(arrays, ROWS.divide(result, sizes), strict=True):
        np.testing.assert_array_equal(part["y"], array * 2)
        assert part["list"] == array[:, 0].tolist() and part["none"] is None


def test_tensors_are_joined_by_torch() -> None:
    torch = pytest.importorskip("torch")
    (joined,), _ = ROWS.merge([one(torch.ones(2, 3)), one(torch.zeros(1, 3))])
    assert isinstance(joined, torch.Tensor) and joined.shape == (3, 3)
    assert [part.shape[0] for part in ROWS.divide(joined, [2, 1])] == [2, 1]
