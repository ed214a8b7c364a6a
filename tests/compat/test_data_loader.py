"""torch's DataLoader with our context: its own worker loop, in processes of ours."""

from __future__ import annotations

import os
from typing import Any

import pytest

import ropewalk

torch: Any = pytest.importorskip("torch")
data: Any = pytest.importorskip("torch.utils.data")

pytestmark = pytest.mark.usefixtures("shared_session")  # its workers begin with torch


class Squares(data.Dataset[Any]):
    """Tensors, each with the worker that made it."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[Any, int, int]:
        if index == 7:
            raise LookupError("the last one is missing")
        return torch.full((3,), float(index * index)), data.get_worker_info().id, os.getpid()


def test_a_loader_with_our_context_loads_and_tells_of_errors() -> None:
    loader = data.DataLoader(
        data.Subset(Squares(), range(6)), batch_size=2, num_workers=2, multiprocessing_context=ropewalk.get_context()
    )
    found = list(loader)
    assert torch.equal(torch.cat([squares for squares, _, _ in found])[:, 0], torch.arange(6.0) ** 2)
    assert {worker for _, workers, _ in found for worker in workers.tolist()} == {0, 1}
    assert os.getpid() not in {pid for _, _, pids in found for pid in pids.tolist()}
    broken = data.DataLoader(Squares(), sampler=[7], num_workers=1, multiprocessing_context=ropewalk.get_context())
    iterator = iter(broken)
    with pytest.raises(LookupError, match="the last one is missing"):
        next(iterator)
    iterator._shutdown_workers()  # as when it is collected, which its traceback puts off
