"""What is packed comes back as it was, whatever tensors it has, and the memory is used again."""

from __future__ import annotations

import pickle
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ropewalk.pipeline.stages.packed_tensors import TensorBlock, unpacked


def tensors() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    image = torch.randn(2, 3, 4, 5, generator=generator)
    return {
        "plain": torch.randn(3, 4, generator=generator),
        "channels last": image.contiguous(memory_format=torch.channels_last),
        "transposed": torch.randn(3, 4, generator=generator).T,
        "with holes": torch.randn(6, 4, generator=generator)[::2, 1:],
        "expanded": torch.randn(3, 1, generator=generator).expand(3, 5),
        "number": torch.tensor(3.5),
        "empty": torch.empty(0, 4),
        "bfloat16": torch.randn(7, generator=generator).bfloat16(),
        "complex": torch.randn(3, dtype=torch.complex64, generator=generator),
        "bool": torch.tensor([True, False, True]),
        "int64": torch.arange(5),
        "parameter": nn.Parameter(torch.randn(2, 2, generator=generator)),
    }


@pytest.mark.parametrize("name", tensors())
def test_a_tensor_comes_back_with_its_numbers_and_strides(name: str) -> None:
    tensor, block = tensors()[name], TensorBlock()
    back: Tensor = unpacked(block.pack(tensor), block.memory)
    assert torch.equal(back, tensor)
    assert back.dtype == tensor.dtype
    if name not in ("with holes", "expanded"):
        assert back.stride() == tensor.stride()
    assert not back.requires_grad


def test_what_surrounds_tensors_comes_back_and_is_copied() -> None:
    options: dict[str, Any] = {
        "lr": 0.1,
        "betas": (0.9, 0.99),
        "milestones": Counter([3, 3]),
        "names": ["a", None, True],
    }
    value: dict[Any, Any] = {"tensors": [tensors()["plain"], (torch.ones(2), "text")], "options": options, 7: None}
    block = TensorBlock()
    packed = pickle.loads(pickle.dumps(block.pack(value)))
    options["milestones"][3] = 9
    options["names"].append("later")
    back = unpacked(packed, block.memory)
    assert torch.equal(back["tensors"][0], tensors()["plain"])
    assert torch.equal(back["tensors"][1][0], torch.ones(2))
    assert back["tensors"][1][1] == "text"
    assert back["options"] == {
        "lr": 0.1, "betas": (0.9, 0.99), "milestones": Counter([3, 3]), "names": ["a", None, True],
    }  # fmt: skip
    assert type(back["options"]["milestones"]) is Counter


def test_memory_is_used_again_while_shapes_stay_and_for_what_is_smaller() -> None:
    block = TensorBlock()
    block.pack([torch.zeros(100), torch.zeros(50)])
    memory = block.memory
    packed = block.pack([torch.ones(100), torch.full((50,), 2.0)])
    assert block.memory is memory
    assert [float(one.sum()) for one in unpacked(packed, block.memory)] == [100, 100]
    packed = block.pack([torch.full((3,), 7.0)])
    assert block.memory is memory
    assert block.size_bytes == 64
    assert unpacked(packed, block.memory)[0].tolist() == [7, 7, 7]
    block.pack([torch.zeros(1000)])
    assert block.memory is not memory


def test_what_comes_twice_is_copied_once() -> None:
    block, tensor = TensorBlock(), torch.ones(100)
    packed = block.pack({"a": tensor, "b": tensor, "c": tensor.clone()})
    assert block.size_bytes == 2 * 448
    assert packed["a"] is packed["b"]
    back = unpacked(packed, block.memory)
    assert all(torch.equal(one, tensor) for one in back.values())


def test_what_comes_back_has_memory_of_its_own() -> None:
    block = TensorBlock()
    packed = block.pack([torch.ones(4), torch.ones(4)])
    back: list[Tensor] = unpacked(packed, block.memory)
    block.memory.zero_()
    assert [one.tolist() for one in back] == [[1] * 4] * 2
    assert back[0].untyped_storage().nbytes() == 16, "a deep copy of it is small"
