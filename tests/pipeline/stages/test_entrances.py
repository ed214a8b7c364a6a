"""Gradients of what comes from other stages are those of a model that is not cut, strides included."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import torch
from torch import Tensor

from ropewalk.pipeline.stages.entrances import Entrance


def leaf(*shape: int) -> Tensor:
    return torch.randn(*shape).requires_grad_()


def uncut(make: Callable[[Tensor], Tensor], like: Tensor) -> Tensor:
    """The gradient as it comes out of the graph."""
    inner = like.detach().requires_grad_().view_as(like)
    return torch.autograd.grad(make(inner), inner)[0]


def test_gradients_keep_the_strides_with_which_they_come() -> None:
    weight = torch.randn(5, 5)
    functions = (
        lambda x: (x @ weight).sum(),  # contiguous
        lambda x: (weight @ x.t()).sum(),  # transposed
        lambda x: x.sum(),  # expanded
    )
    for make in functions:
        value = leaf(5, 5)
        entrance = Entrance(value)
        make(value).backward()
        (found,) = entrance.gradients()
        expected = uncut(make, value)
        assert found is not None and torch.equal(found, expected)
        assert found.stride() == expected.stride()


def test_gradients_of_values_in_any_memory_order_keep_theirs() -> None:
    images = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    for value in (images, images.permute(3, 0, 1, 2), torch.randn(4, 1).expand(4, 3)):
        value = value.detach().requires_grad_()
        entrance = Entrance(value)
        (value * 2).sum(0).square().sum().backward()
        (found,) = entrance.gradients()
        expected = uncut(lambda x: (x * 2).sum(0).square().sum(), value)
        assert found is not None and found.stride() == expected.stride()


def test_a_gradient_is_not_copied_if_its_strides_are_the_values() -> None:
    value, made = leaf(64, 64), list[int]()
    entrance = Entrance(value)

    def see(gradient: Tensor) -> None:
        made.append(gradient.data_ptr())

    value.register_hook(see)  # pyright: ignore[reportUnknownMemberType]
    (value @ torch.randn(64, 64)).sum().backward()
    (found,) = entrance.gradients()
    assert found is not None and [found.data_ptr()] == made


def test_tensors_without_a_gradient_have_none_in_their_place() -> None:
    read, unread, mask = leaf(3), leaf(3), torch.ones(3, dtype=torch.bool)
    entrance = Entrance({"x": [read, unread], "mask": mask, "scale": 2.0})
    (read * mask).sum().backward()
    first, *others = entrance.gradients()
    assert first is not None and others == [None, None]


def test_watching_keeps_no_graph_alive() -> None:
    gc.disable()
    try:
        value = leaf(3)
        entrance = Entrance(value)
        gone = weakref.ref(value)
        value.sum().backward()
        entrance.gradients()
        del value, entrance
        assert gone() is None
    finally:
        gc.enable()
