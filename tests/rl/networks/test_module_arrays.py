"""Weights as arrays: they follow the module, and the module follows them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from ropewalk.rl.networks.module_arrays import ModuleArrays


def module() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))


def test_copies_are_those_of_the_moment_and_loading_changes_the_module_in_place() -> None:
    one, other = module(), module()
    arrays = ModuleArrays(one)
    with torch.no_grad():
        one[0].weight.add_(1)  # type: ignore[index, union-attr, operator]
    one(torch.ones(4, 3))  # and this one the running means and the number of batches
    copied = arrays.copied()
    assert {name: array.tolist() for name, array in copied.items()} == {
        name: tensor.tolist() for name, tensor in one.state_dict().items()
    }
    with torch.no_grad():
        one[0].weight.zero_()  # type: ignore[index, union-attr, operator]
    assert np.abs(copied["0.weight"]).min() > 0
    for array in copied.values():
        array.setflags(write=False)  # as published ones may be
    ModuleArrays(other).load(copied)
    assert {name: tensor.tolist() for name, tensor in other.state_dict().items()} == {
        name: array.tolist() for name, array in copied.items()
    }
    one.load_state_dict(other.state_dict())
    assert arrays.copied()["0.weight"].tolist() == copied["0.weight"].tolist()


def test_arrays_of_another_network_are_refused_by_name() -> None:
    arrays = ModuleArrays(module())
    others = {**arrays.copied(), "2.weight": np.zeros(1)}
    del others["0.bias"]
    with pytest.raises(ValueError, match=r"this Sequential: missing \['0.bias'\], too many \['2.weight'\]; the policy"):
        arrays.load(others)
