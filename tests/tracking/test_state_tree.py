from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ropewalk.tracking.state_tree import MalformedTree, TensorBytes, TreeEncoder, decode_tree


def again(tree: Any) -> Any:
    encoder = TreeEncoder()
    text = json.dumps(encoder.encode(tree, ""), allow_nan=False)
    copies = {name: TensorBytes(one.dtype, one.shape, bytearray(one.content)) for name, one in encoder.tensors.items()}
    return decode_tree(json.loads(text), copies.__getitem__)


def test_plain_values_come_back_with_their_types() -> None:
    tree = {"a": [1, 2.5, None, True, "text", b"\0\xff", (1, (2,))], "b": {1: "x", (2, 3): 2**100, "$x": -math.inf}}
    assert again(tree) == tree
    assert math.isnan(again(math.nan))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.int64, torch.float8_e4m3fn])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_tensors_come_back_in_memory_of_their_own(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.ones(shape).to(dtype)
    found = again({"x": tensor})["x"]
    assert found.dtype == dtype and found.shape == shape
    assert torch.equal(found.to(torch.float32), tensor.to(torch.float32))
    found.to(torch.float32).add_(1)


@pytest.mark.parametrize(
    "array", [np.arange(6.0).reshape(2, 3).T, np.array(3, dtype=">i4"), np.zeros((0, 2), np.bool_)]
)
def test_arrays_come_back_and_can_be_written(array: Any) -> None:
    found = again([array])[0]
    assert np.array_equal(found, array) and found.shape == array.shape
    found[...] = 1


def test_a_transposed_tensor_keeps_its_values() -> None:
    tensor = torch.arange(6.0).reshape(2, 3).T
    assert torch.equal(again(tensor), tensor)


def test_objects_stand_for_their_state_dict() -> None:
    model = nn.Linear(2, 3)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    found = again({"model": model, "optimizer": optimizer})
    other = nn.Linear(2, 3)
    other.load_state_dict(found["model"])
    assert torch.equal(other.weight, model.weight)
    once_more = torch.optim.Adam(other.parameters())
    once_more.load_state_dict(found["optimizer"])
    assert torch.equal(once_more.state_dict()["state"][0]["exp_avg"], optimizer.state_dict()["state"][0]["exp_avg"])


def test_states_of_random_generators_can_be_kept() -> None:
    generator = np.random.default_rng(1)
    state = again(generator.bit_generator.state)
    other = np.random.default_rng(2)
    other.bit_generator.state = state
    assert other.random() == generator.random()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"a": [object()]}, r"a\.0 is <object"),
        ({"x": torch.ones(2, dtype=torch.complex128)}, "x is a tensor of torch.complex128"),
        ({"x": torch.eye(2).to_sparse()}, "x is a tensor .* layout torch.sparse"),
        (np.array([object()]), "the state is an array of object"),
        ({"x": np.longdouble(1)}, "x is .* of type longdouble"),  # it was turned into itself for ever
        ({"x": np.clongdouble(1)}, "x is .* of type clongdouble"),
    ],
)
def test_what_cannot_be_kept_is_named_by_its_place(value: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        TreeEncoder().encode(value, "")


@pytest.mark.parametrize("data", [{"$tensor": 3}, {"$float": "1"}, {"$call": "os.system"}, {"$tuple": 1}])
def test_other_marks_are_refused(data: Any) -> None:
    with pytest.raises(MalformedTree):
        decode_tree(data, {}.__getitem__)
