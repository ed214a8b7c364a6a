"""Calls that become one, each as an entry of a new first axis."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.calls.stacking import Stacking

STACKING = Stacking()
split_compatible, stack = STACKING.split_compatible, STACKING.merge


def unstack(result: Any, num_calls: int) -> list[Any]:
    return STACKING.divide(result, [1] * num_calls)


@dataclasses.dataclass(frozen=True, slots=True)
class Observation:
    image: np.ndarray
    speed: float
    name: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.speed, float):
            raise TypeError("a check that holds for one call, not for a batch")


class Pair(NamedTuple):
    left: Any
    right: Any


def one(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, kwargs


# --- arguments --------------------------------------------------------------------------------------------------------


def test_arrays_and_numbers_get_a_new_first_axis_and_other_values_become_lists() -> None:
    calls = [one(np.full((2, 3), i, np.float32), i, name=f"call {i}", rate=i / 2, flag=i > 1) for i in range(4)]
    (images, numbers), kwargs = stack(calls)
    assert images.shape == (4, 2, 3) and images.dtype == np.float32 and (images[:, 0, 0] == range(4)).all()
    assert numbers.tolist() == [0, 1, 2, 3] and numbers.dtype.kind == "i"
    assert kwargs["name"] == ["call 0", "call 1", "call 2", "call 3"]
    assert kwargs["rate"].tolist() == [0, 0.5, 1, 1.5] and kwargs["flag"].dtype == np.bool_


def test_containers_are_stacked_part_by_part() -> None:
    calls = [
        one({"a": np.ones(2) * i, "b": [i, (None, np.float32(i))]}, Pair(i, "x"), Observation(np.ones(3) * i, 1.0 * i))
        for i in range(3)
    ]
    (tree, pair, observation), _ = stack(calls)
    assert tree["a"].shape == (3, 2)
    assert tree["b"][0].tolist() == [0, 1, 2]
    assert tree["b"][1][0] == [None] * 3 and tree["b"][1][1].dtype == np.float32
    assert type(pair) is Pair and pair.left.tolist() == [0, 1, 2] and pair.right == ["x"] * 3
    assert type(observation) is Observation and observation.image.shape == (3, 3)
    assert observation.name == ["", "", ""]
    assert observation.speed.tolist() == [0, 1, 2]  # type: ignore[attr-defined]


def test_calls_without_arguments_and_single_calls_can_be_a_batch() -> None:
    assert stack([one(), one()]) == ((), {})
    assert stack([one(np.ones(2))])[0][0].shape == (1, 2)


def test_the_order_of_keywords_and_keys_does_not_matter() -> None:
    calls = [one(a=1, b={"x": 1, "y": 2}), one(b={"y": 4, "x": 3}, a=2)]
    assert split_compatible(calls) == ({0: 1, 1: 1}, {})
    _, kwargs = stack(calls)
    assert kwargs["a"].tolist() == [1, 2] and kwargs["b"]["x"].tolist() == [1, 3]


def test_large_whole_numbers_do_not_become_floats() -> None:
    (numbers,), _ = stack([one(2**63), one(-1)])
    assert numbers == [2**63, -1]


def test_numbers_become_a_list_where_numpy_is_not_loaded() -> None:
    code = (
        "import sys; from ropewalk.calls.stacking import Stacking\n"
        "calls, way = [((1, 'a'), {}), ((2.5, 'b'), {})], Stacking()\n"
        "assert way.split_compatible(calls) == ({0: 1, 1: 1}, {})\n"
        "assert way.merge(calls) == (([1, 2.5], ['a', 'b']), {})\n"
        "assert way.divide({'x': [1, 2]}, [1, 1]) == [{'x': 1}, {'x': 2}]\n"
        "assert 'numpy' not in sys.modules and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# --- those that do not fit --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        (
            one(np.ones(4), {"k": 1}),
            "args[0] is an array of shape (4,) and type float64, theirs is an array of shape (3,) and type float64",
        ),
        (one(np.ones(3, np.float32), {"k": 1}), "args[0] is an array of shape (3,) and type float32, theirs is"),
        (one([1, 2, 3], {"k": 1}), "args[0] is a list of 3, theirs is an array of shape (3,)"),
        (one(np.ones(3), {"k": None}), "args[1]['k'] is of type NoneType, theirs is of type int"),
        (one(np.ones(3), {"q": 1}), "args[1] is a dict with the keys 'q', theirs is a dict with the keys 'k'"),
        (one(np.ones(3), [1]), "args[1] is a list of 1, theirs is a dict with the keys 'k'"),
        (one(np.ones(3)), "it has 1 positional arguments, theirs have 2"),
        (one(np.ones(3), {"k": 1}, x=1), "its keyword arguments are ['x'], theirs are []"),
    ],
)
def test_only_the_odd_call_is_refused_and_told_where_it_differs(odd: Any, message: str) -> None:
    good = one(np.ones(3), {"k": 1})
    fitting, refused = split_compatible([good, odd, good])
    assert list(fitting) == [0, 2] and list(refused) == [1]
    with pytest.raises(ValueError, match=re.escape(f"a batch with 2 others: {message}")):
        raise refused[1]


def test_a_difference_inside_a_dataclass_is_named_by_its_field() -> None:
    calls = [
        one(o=Observation(np.ones(2), 1.0)),
        one(o=Observation(np.ones(2), 1.0)),
        one(o=Observation(np.ones(9), 1.0)),
    ]
    _, refused = split_compatible(calls)
    assert "kwargs['o'].image is an array of shape (9,)" in str(refused[2])


def test_who_brings_other_numbers_of_rows_is_told_what_would_take_them() -> None:
    _, refused = split_compatible([one(np.ones((4, 3))), one(np.ones((8, 3)))])
    assert "concatenate=True" in str(refused[1])


def test_the_form_of_most_calls_wins_and_of_equals_the_first() -> None:
    small, large = one(np.ones(1)), one(np.ones(2))
    assert list(split_compatible([small, large, large])[0]) == [1, 2]
    assert list(split_compatible([large, small])[0]) == [0]


# --- results ----------------------------------------------------------------------------------------------------------


def test_results_are_taken_apart_in_the_order_of_the_calls() -> None:
    result = {
        "action": np.arange(6).reshape(3, 2),
        "info": (["a", "b", "c"], None),
        "pair": Pair(np.arange(3), [1, 2, 3]),
    }
    parts = unstack(result, 3)
    assert [part["action"].tolist() for part in parts] == [[0, 1], [2, 3], [4, 5]]
    assert [part["info"] for part in parts] == [("a", None), ("b", None), ("c", None)]
    assert [part["pair"] for part in parts] == [Pair(0, 1), Pair(1, 2), Pair(2, 3)]
    assert unstack(None, 2) == [None, None]


leaves = st.one_of(
    st.floats(-1e6, 1e6),
    st.integers(-(2**40), 2**40),
    st.text(max_size=3),
    st.integers(0, 3).map(lambda n: np.arange(float(n))),
)
forms = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.dictionaries(st.text(max_size=2), inner, min_size=1, max_size=3),
        st.tuples(inner, inner),
        st.builds(Pair, inner, inner),
        st.builds(Observation, inner, st.floats(0, 1)),
    ),
    max_leaves=6,
)


@given(value=forms, num_calls=st.integers(1, 4))
def test_taking_apart_undoes_stacking(value: Any, num_calls: int) -> None:
    calls = [one(value)] * num_calls
    assert split_compatible(calls) == (dict.fromkeys(range(num_calls), 1), {})
    (stacked,), _ = stack(calls)
    for part in unstack(stacked, num_calls):
        np.testing.assert_equal(_plain(part), _plain(value))


def _plain(value: Any) -> Any:
    """As nested lists: a number may come back as numpy's."""
    if dataclasses.is_dataclass(value):
        return [_plain(getattr(value, field.name)) for field in dataclasses.fields(value)]
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (np.ones((2, 3)), "its result is an array of shape (2, 3) and type float64; it needs one entry per call"),
        (np.float64(1), "its result is of type float64; return an array or a list"),
        (np.array(1.0), "its result is an array of shape () and"),
        ([1, 2], "its result is a list of 2; it needs one entry per call"),
        ({"a": np.ones(3), "b": ([1],)}, "its result['b'][0] is a list of 1; it needs"),
        ("abc", "its result is of type str; return an array or a list"),
        (Pair(np.ones(3), 5), "its result[1] is of type int; return"),
    ],
)
def test_a_result_that_is_not_for_each_call_is_refused_with_its_place(result: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=re.escape(f"needs a result for each, but {message}")):
        unstack(result, 3)


# --- torch ------------------------------------------------------------------------------------------------------------


def test_tensors_are_stacked_by_torch() -> None:
    torch = pytest.importorskip("torch")
    calls = [one({"x": torch.full((2,), float(i))}) for i in range(3)]
    assert list(split_compatible([*calls, one({"x": torch.ones(3)})])[0]) == [0, 1, 2]
    assert list(split_compatible([*calls, one({"x": np.ones(2)})])[0]) == [0, 1, 2]
    assert list(split_compatible([*calls, one({"x": torch.nn.Parameter(torch.ones(2))})])[0]) == [0, 1, 2, 3]
    (tree,), _ = stack(calls)
    assert isinstance(tree["x"], torch.Tensor) and tree["x"].shape == (3, 2)
    assert [part.tolist() for part in unstack(tree["x"], 3)] == [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]
    with pytest.raises(ValueError, match=r"an array of shape \(3, 2\) and type torch.float32"):
        unstack(tree["x"], 2)
