"""Which version of the weights a piece uses where: the formulas of asynchronous pipelines, and nothing else.

Pieces are micro-batches 0, 1, ... counted from the last time the pipeline was empty. A
stage with r replicas gives piece b to replica b mod r, where it is number j = b // r.
Version u + 1 of a stage is what its update u makes; version 0 is what it began with.

    stashing         v_s(b) = max(0, j - W_s)     W_s = ceil(workers after s / r_s)   PipeDream (SOSP'19), section 3.3
    vertical sync    v(b)   = max(0, j - n + 1)   n stages with equal replicas        the same section
    double buffered  v(b)   = max(0, t - 1)       t = b // m, the mini-batch          PipeDream-2BW (2006.09503), 3.1

Why these formulas: docs/theory.md, "Weight versions".
"""

from __future__ import annotations


def warm_up(workers_after: int, replicas: int) -> int:
    """W_s: how many pieces a replica admits before it must finish one, so that all workers after it are busy."""
    return -(-workers_after // replicas)


def stashed(piece: int, *, workers_after: int, replicas: int) -> int:
    """The version for forward and backward of a piece, when each stage takes the newest it has (weight stashing)."""
    return max(0, piece // replicas - warm_up(workers_after, replicas))


def synchronised(piece: int, *, num_stages: int, replicas: int) -> int:
    """The version for a piece at every stage, when all take what the first stage has (vertical sync)."""
    return max(0, piece // replicas - num_stages + 1)


def double_buffered(piece: int, *, micro_batches: int) -> int:
    """The version for a piece at every stage, when updates come once a mini-batch and two versions are kept."""
    return max(0, piece // micro_batches - 1)
