"""A worker of an epoch: what it hands to its stages."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ropewalk.exchange.tensor_codec import ALIGN  # noqa: E402
from ropewalk.pipeline.stages.micro_batches import MicroBatchPiece, mini_batch  # noqa: E402
from ropewalk.training.assignment import Admission  # noqa: E402
from ropewalk.training.stage_runtime import StageRuntime  # noqa: E402


def in_a_frame(tensor: Any, offset: int) -> Any:
    """The same numbers at this many bytes behind a multiple of ALIGN, as a tensor lies in what a socket gave."""
    memory = torch.empty(tensor.nbytes + 2 * ALIGN, dtype=torch.uint8)
    begin = -memory.data_ptr() % ALIGN + offset
    placed = memory[begin : begin + tensor.nbytes].view(tensor.dtype).reshape(tensor.shape)
    return placed.copy_(tensor)


@pytest.mark.parametrize("offset", [0, 8, 60])
def test_batches_are_put_where_torch_itself_puts_tensors(offset: int) -> None:
    # Kernels add in another order from other addresses: training with links then differed in the last bit.
    x, y = torch.arange(64.0).reshape(4, 16), torch.arange(4.0)
    batch = mini_batch({"x": in_a_frame(x, offset)}, in_a_frame(y, offset), 2)
    admitted: list[tuple[int, MicroBatchPiece]] = []
    stage = SimpleNamespace(admit=lambda number, piece: admitted.append((number, piece)))
    crew: Any = SimpleNamespace(stages={1: stage}, _data=None, _device=torch.device("cpu"), _step=-1, _num_steps=0)
    crew._placed = functools.partial(StageRuntime._placed, crew)
    StageRuntime._hand_over(crew, Admission(0, 0, 2, ((1, batch),), (), step=0), first=6)
    assert [number for number, _ in admitted] == [6, 7]
    assert torch.equal(torch.cat([piece.inputs["x"] for _, piece in admitted]), x)
    assert torch.equal(torch.cat([piece.labels for _, piece in admitted]), y)
    assert admitted[0][1].inputs["x"].data_ptr() % ALIGN == admitted[0][1].labels.data_ptr() % ALIGN == 0
