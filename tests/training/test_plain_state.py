"""Plain values with tensors in JSON: what comes back equals what went in, and nothing else gets in."""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ropewalk.training.plain_state import StateEncoder, decode


def there_and_back(value: Any) -> Any:
    encoder = StateEncoder()
    text = json.dumps(encoder.encode(value, "here"), allow_nan=False)
    return decode(json.loads(text), lambda name: encoder.tensors[name].contiguous())


def same(found: Any, expected: Any) -> bool:
    """Equal to the last bit, with the same types all the way down."""
    if type(found) is not type(expected):
        return False
    if isinstance(expected, dict):
        return list(found) == list(expected) and all(same(found[key], expected[key]) for key in expected)
    if isinstance(expected, list | tuple):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(expected, Tensor):
        return found.dtype == expected.dtype and torch.equal(found, expected)
    return found == expected or (found != found and expected != expected)


leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
keys = st.text() | st.integers() | st.tuples(st.integers(), st.booleans()) | st.sampled_from(["$tensor", "$tuple", ""])
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple) | st.dictionaries(keys, inner, max_size=4)
    ),
    max_leaves=20,
)


@settings(max_examples=100, deadline=None)
@given(values)
def test_any_plain_value_comes_back_as_it_was(value: Any) -> None:
    assert same(there_and_back(value), value)


@pytest.mark.parametrize(
    "value",
    [
        {"betas": (0.9, 0.999), "lr": torch.tensor(0.1), "foreach": None, "amsgrad": False, "best": math.inf},
        {"step": torch.tensor(3.0), "exp_avg": torch.randn(2, 3), "empty": torch.empty(0, 2), "list": [torch.ones(1)]},
        {"milestones": Counter({3: 1, 7: 2}), "ordered": OrderedDict(b=1, a=2), "dtype": torch.bfloat16},
        {"a": {"b.c": torch.zeros(1)}, "a.b": {"c": torch.ones(1)}},
    ],
    ids=["options", "state", "schedule", "names that look alike"],
)
def test_what_optimizers_and_schedules_keep_comes_back_as_it_was(value: Any) -> None:
    assert same(there_and_back(value), value)


def test_the_order_of_memory_comes_back() -> None:
    """So that an update after loading reads rows as one before it, and rounds alike."""
    for tensor in (
        torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        torch.randn(3, 4).T,
        torch.randn(2, 3, 4).permute(2, 0, 1),
    ):
        found = there_and_back(tensor)
        assert torch.equal(found, tensor) and found.stride() == tensor.stride()
    for tensor in (torch.randn(4, 4)[:, ::2], torch.ones(1).expand(3, 2)):
        assert torch.equal(there_and_back(tensor), tensor)


def test_numbers_of_numpy_become_those_of_python() -> None:
    found = there_and_back({"a": np.float64(0.1), "b": np.int64(3), "c": np.bool_(True), "d": np.float32("nan")})
    assert same(found, {"a": 0.1, "b": 3, "c": True, "d": math.nan})


class Pair(NamedTuple):
    first: int
    second: int


class OwnTensor(Tensor):
    pass


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (
            {"lr_lambdas": [lambda epoch: epoch]},
            r"rates\.layer\.weight\.lr_lambdas\.0 is <function .* of the class f",
        ),
        ({"pair": Pair(1, 2)}, r"rates\.layer\.weight\.pair is Pair\(first=1, second=2\) of the class Pair"),
        ({"set": {1}}, r"rates\.layer\.weight\.set is \{1\} of the class set"),
        ({"date": np.datetime64("2020-01-01")}, r"rates\.layer\.weight\.date"),
        ({"wide": np.longdouble(1)}, r"rates\.layer\.weight\.wide"),
        ({"array": np.zeros(2)}, r"rates\.layer\.weight\.array"),
        ({object(): 1}, r"a key of rates\.layer\.weight is <object"),
        (
            {"sparse": torch.eye(2).to_sparse()},
            r"sparse is a tensor of the layout torch.sparse_coo",
        ),
        ({"own": torch.ones(1).as_subclass(OwnTensor)}, r"own is a tensor of the class OwnTensor"),
        ({"wide": torch.ones(1, dtype=torch.complex128)}, r"wide is a tensor of torch.complex128.*bfloat16, bool"),
        ({"meta": torch.ones(1, device="meta")}, r"meta is a tensor on the device meta, without data"),
    ],
)
def test_what_needs_code_to_come_back_is_refused_by_its_place(value: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        StateEncoder().encode(value, "rates.layer.weight")
