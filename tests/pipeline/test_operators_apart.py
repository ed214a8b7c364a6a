"""A model on meta is profiled like the model: the same bytes to the last, times of the same size, little memory."""

from __future__ import annotations

import copy
import itertools
import resource
import time
from dataclasses import replace

import pytest
import torch
from torch import nn

from ropewalk.pipeline.profiler import profile
from ropewalk.pipeline.profiles import Operator
from tests.pipeline import models


def _without_times(one: Operator) -> Operator:
    return replace(one, forward_s=0, backward_s=0, input_gradient_s=0, weight_gradient_s=0, spread_s=0)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    "name", ["mlp", *(pytest.param(name, marks=pytest.mark.soak) for name in ("transformer", "resnet"))]
)
def test_a_model_on_meta_has_the_bytes_of_the_model_and_times_of_their_size(name: str) -> None:
    sizes = {"transformer": {"depth": 2, "width": 64}, "mlp": {"depth": 6}}
    model, inputs, *_ = models.MODELS[name](**sizes.get(name, {}))
    without = {
        id(one): nn.Parameter(torch.empty_like(one, device="meta"), one.requires_grad) for one in model.parameters()
    }
    on_meta = copy.deepcopy(model, without)
    told: list[str] = []
    wanted = profile(model, inputs, repeats=1, clock=time.thread_time)
    found = profile(on_meta, inputs, repeats=1, clock=time.thread_time, report=told.append)
    assert found.edges == wanted.edges and found.num_samples == wanted.num_samples
    assert [_without_times(one) for one in found.operators] == [_without_times(one) for one in wanted.operators]
    for one in wanted.operators:
        other = found.by_id[one.id]
        assert other.has_split_backward == one.has_split_backward
        assert (other.forward_s > 0) >= (one.forward_s > 1e-4)
    assert all(one.is_meta for one in on_meta.parameters())
    if name != "resnet":
        measured = [line for line in told if line.startswith("measuring")]
        assert len(measured) < 0.8 * sum(not one.is_input for one in found.operators), "layers are alike"


@pytest.mark.soak
@pytest.mark.usefixtures("one_thread")
def test_no_more_than_one_operator_is_in_memory() -> None:
    def profiled(*widths: int) -> None:  # all different: each layer is measured
        model = nn.Sequential(*[nn.Linear(a, b, device="meta") for a, b in itertools.pairwise(widths)])
        profile(model, torch.randn(2, widths[0]), repeats=1)

    profiled(8, 9)  # whatever torch imports for it
    before = _peak_bytes()
    profiled(*range(2048, 2048 + 17))  # 270 MB
    assert _peak_bytes() - before < 150 << 20


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
