"""Where stages compute, as far as that can be said without a GPU; what GPUs compute is in tests/gpu."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ropewalk.errors import PlanInvalid
from ropewalk.pipeline.tracing.tracer import trace
from ropewalk.training.blueprint import Blueprint
from ropewalk.training.stage_device import is_here, kind_of_device, on_cpu, share_of_memory, stage_device
from ropewalk.training.trainer_options import ProcessOptions

META = torch.device("meta")


class Placed(nn.Module):
    """Makes tensors in its forward, reads a constant, and views what an operation gave strides of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x) + torch.arange(6, device=x.device) + torch.tensor([1.0] * 6)
        return y.view(-1, 2, 3).transpose(1, 2).contiguous().view(-1, 6)


def test_a_blueprint_on_a_device_makes_its_tensors_and_constants_there() -> None:
    blueprint = Blueprint.of(trace(Placed(), torch.randn(4, 6)))
    moved = blueprint.on(META)
    graph = moved.graph()
    assert _constants(blueprint) and not any(one.is_meta for one in _constants(blueprint)), "the first one is as it was"
    assert _constants(moved) and all(one.is_meta for one in _constants(moved))
    result = graph.whole_program()(
        {graph.model_inputs.ids[0]: torch.randn(4, 6, device=META)}, dict(graph.parameters), dict(graph.buffers)
    )[graph.output]
    assert result.device == META and result.shape == (4, 6)
    code = graph.whole_program().code
    assert ".reshape." in code and ".view." not in code, "strides are up to the device"
    assert moved.evaluation is not None and all(one.is_meta for one in _constants(moved.evaluation))


def _constants(blueprint: Blueprint) -> list[Tensor]:
    return [one for one in blueprint._attributes.values() if isinstance(one, Tensor)]


def test_the_device_of_a_model_is_the_one_its_tensors_are_on() -> None:
    assert kind_of_device(None, [torch.zeros(1), torch.zeros(1, device=META)]) == "cpu"
    assert kind_of_device("cuda:1") == "cuda:1"
    assert kind_of_device(torch.device("cuda")) == "cuda"


@pytest.mark.parametrize(
    ("given", "complaint"),
    [("tpu", "'tpu'"), ("meta", "cpu or cuda, not on 'meta'"), (("cuda",), r"\('cuda',\)")],
)
def test_devices_that_stages_cannot_compute_on_are_refused_by_name(given: Any, complaint: str) -> None:
    with pytest.raises(PlanInvalid, match=complaint):
        ProcessOptions(device=given)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU; tests/gpu has this test for such ones")
def test_a_gpu_that_a_process_does_not_see_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(PlanInvalid, match=r"'cuda'.*sees 0 GPUs.*gpus=1.*CUDA_VISIBLE_DEVICES"):
        stage_device("cuda", 0)
    assert share_of_memory("cuda", 2) is None
    assert stage_device("cpu", 3) == torch.device("cpu")


def test_tensors_that_are_on_no_gpu_stay_what_they_are() -> None:
    tensor, nowhere = torch.zeros(2), torch.zeros(2, device=META)
    found = on_cpu({"a": [tensor, (nowhere, 1)]})
    assert found["a"][0] is tensor and found["a"][1][0] is nowhere and found["a"][1][1] == 1


def test_a_gpu_that_only_other_hosts_have_is_not_measured_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(total_memory=100 + index))
    assert is_here("cuda") and is_here("cuda:1") and not is_here("cuda:2") and not is_here("cpu")
    assert share_of_memory("cuda:2", 2) is None
    assert share_of_memory("cuda:1", 4) == 101 // 4
    assert share_of_memory("cuda", 4) == 100 // 2, "two workers on each of two GPUs"
