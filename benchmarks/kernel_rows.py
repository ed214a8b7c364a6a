"""The loops of a worker that sends few components: against the memory they must move, numpy, and torch operations."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from exchange_bench import Bench, Row
from pool_rows import Line, milliseconds

from ropewalk.exchange import kernels
from ropewalk.exchange.buckets import BucketEntry, Layout
from ropewalk.exchange.kernels import numpy_kernels, torch_kernels
from ropewalk.exchange.kernels.selection import Rule, Selection
from ropewalk.exchange.wire.sparse import pack_sparse, unpack_sparse

COMPONENTS = 25_000_000
JUDGED = 0.01


def kernel(bench: Bench) -> Iterator[Line]:
    """GD-SEC's pass: it reads gradient, memory, error and what moved last, and writes the new error."""
    size = bench.count(COMPONENTS)
    rng = np.random.default_rng(0)
    gradient, memory, error = (rng.standard_normal(size, np.float32) for _ in range(3))
    reference = np.abs(rng.standard_normal(size, np.float32)) + np.float32(0.5)
    ratios = np.abs(gradient - memory + error) / reference
    source, target = (np.ones(size * 5 // 2, np.float32) for _ in range(2))
    g, h, e, base = (torch.from_numpy(each) for each in (gradient, memory, error, reference))
    for density in (0.001, JUDGED, 0.1):
        factor = float(np.quantile(ratios, 1 - density))
        errors = {name: np.zeros(size, np.float32) for name in ("ropewalk", "numpy", "torch")}
        found: dict[str, Selection] = {}

        def ours() -> None:
            found["ropewalk"] = kernels.gd_sec_select(g, h, e, base, factor, torch.from_numpy(errors["ropewalk"]))  # noqa: B023

        def by_numpy() -> None:
            rule = Rule(reference, factor)  # noqa: B023
            found["numpy"] = numpy_kernels.gd_sec_select(gradient, memory, error, rule, errors["numpy"])  # noqa: B023

        def by_torch() -> None:
            kept = torch.from_numpy(errors["torch"])  # noqa: B023
            found["torch"] = torch_kernels.gd_sec_select(g, h, e, (base, factor), kept)  # noqa: B023

        contenders = {"ropewalk": ours, "numpy": by_numpy, "torch": by_torch}
        times = bench.times({**contenders, "copy": lambda: np.copyto(target, source)})
        for name in ("numpy", "torch"):
            assert all(map(np.array_equal, found[name], found["ropewalk"]))
            assert np.array_equal(errors[name], errors["ropewalk"])
        ratio = times["ropewalk"] / times["copy"]
        yield Line(
            f"GD-SEC's worker kernel, {size:,} float32, {density:.1%} sent",
            "<= 2.5 x a copy of the bytes it must move (20 a component)" if density == JUDGED else "",
            f"{ratio:.2f} x: {20 * size / times['ropewalk'] / 1e9:.1f} GB/s",
            ratio <= 2.5 if density == JUDGED else None,
            {name: milliseconds(value) for name, value in times.items()},
        )


def coding(bench: Bench) -> Iterator[Line]:
    """From what was selected to bytes, from bytes to what is added."""
    size = bench.count(COMPONENTS)
    layout = Layout((BucketEntry("weight", (size,)),))
    rng = np.random.default_rng(0)
    total = torch.zeros(size)
    for density in (0.001, JUDGED, 0.1):
        indices = np.flatnonzero(rng.random(size, np.float32) < density).astype(np.int32)
        values = rng.standard_normal(indices.size, np.float32)
        message = pack_sparse(layout, indices, values)
        times = bench.times(
            {
                "pack": lambda: pack_sparse(layout, indices, values),  # noqa: B023
                "unpack": lambda: unpack_sparse(message.data, size),  # noqa: B023
                "add": lambda: kernels.scatter_add(total, indices, values),  # noqa: B023
            }
        )
        p = indices.size / size
        entropy = -np.log2(p) - (1 - p) / p * np.log2(1 - p)
        bits = (message.bits - 32 * indices.size) / indices.size
        spoken = ", ".join(f"{name} {milliseconds(value)}" for name, value in times.items())
        what = f"message of {density:.1%} of {size:,} float32: bits an index, and its coding"
        yield Line(what, "", f"{bits:.2f} (entropy {entropy:.2f}), {spoken}", None)


ROWS: dict[str, Row] = {"kernel": kernel, "coding": coding}
