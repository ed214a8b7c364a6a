"""What rows of the table of exchanges share: rounds in turn, and members that are processes."""

from __future__ import annotations

import json
import os
import pathlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from call_rows import by_turns
from pool_rows import Line

Values = dict[str, float]


@dataclass(frozen=True, slots=True)
class Bench:
    """How thoroughly to measure."""

    repeats: int = 9
    quick: bool = False

    def count(self, usual: int) -> int:
        """A number of components or steps."""
        return usual // 25 if self.quick else usual

    def times(self, contenders: Mapping[str, Callable[[], object]]) -> Values:
        """The median duration of each, in turn (A B C, B C A, ...), after a round that is forgotten."""
        return by_turns(list(contenders), self.repeats, lambda name: duration(contenders[name]))

    def times_together(self, contenders: Mapping[str, Callable[[], object]]) -> Values:
        """As `times`, where all members of the process group call this: a turn begins when all are there."""

        def measure(name: str) -> float:
            dist.barrier()
            return duration(contenders[name])

        return by_turns(list(contenders), self.repeats, measure)


#: Measures, and gives lines.
Row = Callable[[Bench], Iterator[Line]]


def duration(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def together(size: int, work: Callable[..., Any], *arguments: Any) -> Any:
    """Run `work(*arguments)` in `size` processes that torch.distributed has joined over gloo.

    Returns:
        What it returns on rank 0, as JSON says it.
    """
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_member, (size, folder, work, arguments), nprocs=size)  # pyright: ignore[reportPrivateImportUsage]
        return json.loads(pathlib.Path(folder, "answer").read_text())


def _member(rank: int, size: int, folder: str, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size)
    answer = work(*arguments)
    if rank == 0:
        pathlib.Path(folder, "answer").write_text(json.dumps(answer))
    dist.barrier()
    dist.destroy_process_group()
