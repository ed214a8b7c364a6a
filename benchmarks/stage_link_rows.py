"""What passes between stages on one host: our links against gloo's send and receive, two processes in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from call_rows import by_turns
from exchange_bench import Values, together
from pipeline_bench import Bench, Row
from pool_rows import Line
from torch import Tensor

from ropewalk.pipeline.plans import Edge, Plan, Stage
from ropewalk.pipeline.stages.in_memory_links import LinkMessage, Tag
from ropewalk.training.links import ProcessLinks

PLAN = Plan((Stage(0, ("a",), (0,)), Stage(1, ("b",), (1,))), (Edge("a", 0, (1,), 4, 4),))
#: Bytes of a tensor, and of that many copies of it how many its way may take, beside 40 us.
SIZES = {1 << 10: 0.0, 1 << 16: 1.5, 1 << 20: 1.5, 1 << 24: 1.5}
FIXED_S = 40e-6


def one_way(bench: Bench) -> Iterator[Line]:
    """Half a round trip: the one process sends and waits, the other one receives, reads and answers."""
    for size, num_copies in SIZES.items():
        seconds: Values = together(2, ways, size, bench.rounds, 20 if bench.quick else 400)
        reach = FIXED_S + num_copies * seconds["copy"]
        yield Line(
            f"one way of a tensor of {size >> 10:,} KB between two processes of a host",
            f"<= 40 us{f' + {num_copies:g} copies' if num_copies else ''}",
            f"{microseconds(seconds['ropewalk'])} ({seconds['gloo'] / seconds['ropewalk']:.1f} x faster than gloo)",
            seconds["ropewalk"] <= reach,
            {
                "ropewalk": microseconds(seconds["ropewalk"]),
                "torch": microseconds(seconds["gloo"]),
                "ideal": f"{microseconds(seconds['copy'])} (a copy)",
            },
        )


def ways(size: int, rounds: int, num: int) -> Values:
    """One process's part: seconds of one way, by contender; the medians of rounds."""
    num = max(10, min(num, (1 << 28) // size))
    rank = dist.get_rank()
    tensor = torch.rand(size // 4)
    links = linked()
    turns: dict[str, Callable[[], None]] = {
        "ropewalk": lambda: over_links(links, tensor, num),
        "gloo": lambda: over_gloo(tensor, num),
        "copy": lambda: copies(tensor, 2 * num) if rank == 0 else None,
    }

    def measure(name: str) -> float:
        dist.barrier()
        begun = time.perf_counter()
        turns[name]()
        return (time.perf_counter() - begun) / (2 * num)

    found = by_turns(list(turns), rounds, measure)
    links.close()
    return found


def linked() -> ProcessLinks:
    """This rank's links, to the other's."""
    links = ProcessLinks(0, PLAN.workers[dist.get_rank()], PLAN)
    endpoints: list[Any] = [None, None]
    dist.all_gather_object(endpoints, links.endpoint())
    links.connect(dict(zip(PLAN.workers, endpoints, strict=True)))
    dist.barrier()
    return links


def over_links(links: ProcessLinks, tensor: Tensor, num: int) -> None:
    def receive(tag: Tag) -> Tensor:
        while not links.has(tag):
            links.wait()
        return links.receive(tag).tree

    rank = links.me.group
    there, back = Tag("a", rank, 1 - rank, 0), Tag("a", 1 - rank, rank, 0)
    for number in range(num):
        if rank == 0:
            links.send(there._replace(micro_batch=number), LinkMessage(tensor))
        received = receive(back._replace(micro_batch=number))
        if rank == 1:
            links.send(there._replace(micro_batch=number), LinkMessage(received))


def over_gloo(tensor: Tensor, num: int) -> None:
    rank = dist.get_rank()
    received = torch.empty_like(tensor)
    for _ in range(num):
        if rank == 0:
            dist.send(tensor, 1)
        dist.recv(received, 1 - rank)
        if rank == 1:
            dist.send(received, 0)


def copies(tensor: Tensor, num: int) -> None:
    target = torch.empty_like(tensor)
    for _ in range(num):
        target.copy_(tensor)


def microseconds(seconds: float) -> str:
    return f"{1e6 * seconds:,.1f} us"


ROWS: dict[str, Row] = {"stage-links": one_way}
