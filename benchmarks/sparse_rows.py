"""A sparse sum over two processes: our message and all-gather against torch's sparse all-reduce, both over gloo."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from exchange_bench import Bench, Row, Values, together
from pool_rows import Line, milliseconds

from ropewalk.exchange.buckets import BucketEntry, Layout
from ropewalk.exchange.groups.torch_group import TorchGroup
from ropewalk.exchange.kernels import scatter_add
from ropewalk.exchange.wire.sparse import pack_sparse, unpack_sparse

COMPONENTS = 25_000_000
SIZE = 2
JUDGED = 0.01


def sparse(bench: Bench) -> Iterator[Line]:
    """Components of each member, as (indices, values), are added to a vector that all members hold."""
    size = bench.count(COMPONENTS)
    for density in (0.001, JUDGED):
        times: Values = together(SIZE, sum_of_few, bench, size, density)
        ratio = times["gloo"] / times["ropewalk"]
        yield Line(
            f"sum of {density:.1%} of {size:,} float32 over {SIZE} processes",
            ">= 20 x faster than gloo's sparse all-reduce" if density == JUDGED else "",
            f"{ratio:.1f} x (dense all-reduce {milliseconds(times['dense'])})",
            ratio >= 20 if density == JUDGED else None,
            {name: milliseconds(times[name]) for name in ("ropewalk", "bare", "gloo")},
        )


def sum_of_few(bench: Bench, size: int, density: float) -> Values:
    """One member's part. "bare" gathers padded pairs, uncoded, which is the least that torch.distributed can do."""
    rank = dist.get_rank()
    group = TorchGroup()
    layout = Layout((BucketEntry("weight", (size,)),))
    rng = np.random.default_rng(rank)
    indices = np.flatnonzero(rng.random(size, np.float32) < density).astype(np.int32)
    values = rng.standard_normal(indices.size, np.float32)
    at = torch.from_numpy(indices.astype(np.int64))[None]
    coo = torch.sparse_coo_tensor(at, torch.from_numpy(values), (size,), check_invariants=False)
    totals = {name: torch.zeros(size) for name in ("ropewalk", "bare", "gloo")}
    whole = torch.zeros(size)

    def ours() -> None:
        message = pack_sparse(layout, indices, values)
        for data, _ in group.all_gather(message.data.data, (), "sum"):
            scatter_add(totals["ropewalk"], *unpack_sparse(data, size))

    def bare() -> None:
        count = torch.tensor([indices.size])
        counts = [torch.empty_like(count) for _ in range(SIZE)]
        dist.all_gather(counts, count)
        longest = max(map(int, counts))
        pairs = torch.zeros((2, longest), dtype=torch.int32)
        pairs[0, : indices.size] = torch.from_numpy(indices)
        pairs[1, : indices.size] = torch.from_numpy(values.view(np.int32))
        gathered = [torch.empty_like(pairs) for _ in range(SIZE)]
        dist.all_gather(gathered, pairs)
        for heard, num_values in zip(gathered, map(int, counts), strict=True):
            scatter_add(
                totals["bare"], heard[0, :num_values].numpy(), heard[1, :num_values].view(torch.float32).numpy()
            )

    def by_gloo() -> None:
        total = coo.clone()
        dist.all_reduce(total)
        totals["gloo"].add_(total)

    def dense() -> None:
        dist.all_reduce(whole)

    contenders: Any = {"ropewalk": ours, "bare": bare, "gloo": by_gloo, "dense": dense}
    times = bench.times_together(contenders)
    for name in ("bare", "gloo"):
        torch.testing.assert_close(totals[name], totals["ropewalk"], rtol=1e-5, atol=1e-4)
    group.close()
    return times


ROWS: dict[str, Row] = {"sparse": sparse}
