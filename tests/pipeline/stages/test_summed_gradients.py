"""Sums of gradients follow the backwards from version to version."""

from __future__ import annotations

import torch
from torch import nn

from ropewalk.pipeline.stages.summed_gradients import SummedGradients

NAMES = ("a", "b")


def leaves(value: float) -> dict[str, nn.Parameter]:
    return {name: nn.Parameter(torch.full((2,), value)) for name in NAMES}


def test_backwards_of_several_versions_add_to_one_sum() -> None:
    sums, old, new = SummedGradients(NAMES), leaves(2.0), leaves(5.0)
    for version in (old, new, new, old):
        sums.move_to(version)
        (version["a"] ** 2).sum().backward()
    found = sums.take(NAMES)
    assert found["a"] is not None and found["a"].tolist() == [28.0, 28.0]  # 4 + 10 + 10 + 4
    assert found["b"] is None
    assert all(leaf.grad is None for version in (old, new) for leaf in version.values())


def test_what_is_taken_begins_anew_and_the_rest_stays() -> None:
    sums, weights = SummedGradients(NAMES), leaves(1.0)
    assert sums.take(NAMES) == {"a": None, "b": None}
    sums.move_to(weights)
    (weights["a"] + weights["b"]).sum().backward()
    assert sums.take(["a"])["a"] is not None
    weights["a"].sum().backward()
    found = sums.take(NAMES)
    assert found["a"] is not None and found["a"].tolist() == [1.0, 1.0]
    assert found["b"] is not None
