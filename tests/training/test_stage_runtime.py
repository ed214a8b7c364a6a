"""A worker of an epoch: what it hands to its stages, and what it tells of itself."""

from __future__ import annotations

import functools
import threading
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ropewalk.exchange.tensor_codec import ALIGN  # noqa: E402
from ropewalk.pipeline.actions import Action, ActionKind  # noqa: E402
from ropewalk.pipeline.stages.micro_batches import MicroBatchPiece, mini_batch  # noqa: E402
from ropewalk.training.assignment import Admission  # noqa: E402
from ropewalk.training.stage_runtime import StageRuntime  # noqa: E402
from tests.patience import wait_until  # noqa: E402


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
    crew._worker = SimpleNamespace(update=SimpleNamespace())
    crew._placed = functools.partial(StageRuntime._placed, crew)
    StageRuntime._hand_over(crew, Admission(0, 0, 2, ((1, batch),), (), step=0), first=6)
    assert [number for number, _ in admitted] == [6, 7]
    assert torch.equal(torch.cat([piece.inputs["x"] for _, piece in admitted]), x)
    assert torch.equal(torch.cat([piece.labels for _, piece in admitted]), y)
    assert admitted[0][1].inputs["x"].data_ptr() % ALIGN == admitted[0][1].labels.data_ptr() % ALIGN == 0


def test_links_are_asked_by_the_main_thread_alone() -> None:
    # Another thread that asked what a worker waits for took the message in, and left the main thread to sleep on.
    asked_by: set[int] = set()
    has_come = threading.Event()

    def has_arrived(action: Action) -> bool:
        asked_by.add(threading.get_ident())
        return has_come.is_set()

    worker = SimpleNamespace(
        can_perform=has_arrived,
        waits_for=lambda action: None if has_arrived(action) else "a of micro-batch 0",
        perform=lambda action: None,
    )
    crew: Any = SimpleNamespace(
        links=SimpleNamespace(wait=lambda timeout_s: has_come.wait(timeout_s)),
        recorder=SimpleNamespace(record=lambda *facts: None),
        _performing=worker,
        _worker=worker,
        _to_do=deque([Action(ActionKind.RECEIVE, 1, 0, 0)]),
        _lacks=None,
        _device=torch.device("cpu"),
        _cuts={},
    )
    main = threading.Thread(target=StageRuntime.go_on, args=(crew, lambda: False))
    main.start()
    doing: Any = StageRuntime.doing.fget
    wait_until(lambda: "waits for" in doing(crew))
    assert doing(crew).endswith(", waits for a of micro-batch 0") and asked_by == {main.ident}
    has_come.set()
    main.join()
    assert doing(crew) == "it has nothing to do"
