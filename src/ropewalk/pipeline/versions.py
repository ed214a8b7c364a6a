"""The version of the weights that a piece uses at each stage: the formulas of asynchronous pipelines, and nothing else.

Pieces are micro-batches 0, 1, ... counted from the last time the pipeline was empty. A
stage with r replicas gives piece b to replica b mod r, where it is number j = b // r.
Update u of a stage makes version u + 1; version 0 has the initial weights.

    stashing         v_s(b) = max(0, j - W_s)     W_s = ceil(workers after s / r_s)   PipeDream (SOSP'19), section 3.3
    vertical sync    v(b)   = max(0, j - n + 1)   n stages with equal replicas        the same section
    double buffered  v(b)   = max(0, t - 1)       t = b // m, the mini-batch          PipeDream-2BW (2006.09503), 3.1

Why these formulas: docs/theory.md, "Weight versions".
"""

from __future__ import annotations


def warm_up(workers_after: int, replicas: int) -> int:
    """Return W_s: the pieces that a replica admits before it must finish one, to keep all workers after it busy.

    Args:
        workers_after: number of workers of later stages.
        replicas: replicas of the stage.
    """
    return -(-workers_after // replicas)


def stashed(piece: int, *, workers_after: int, replicas: int) -> int:
    """Return the version for a piece's forward and backward if each stage uses its newest (weight stashing).

    Args:
        piece: number of the piece.
        workers_after: number of workers of later stages.
        replicas: replicas of the stage.
    """
    return max(0, piece // replicas - warm_up(workers_after, replicas))


def synchronised(piece: int, *, num_stages: int, replicas: int) -> int:
    """Return the version for a piece at every stage if all use that of the first stage (vertical sync).

    Args:
        piece: number of the piece.
        num_stages: number of stages.
        replicas: replicas of each stage.
    """
    return max(0, piece // replicas - num_stages + 1)


def double_buffered(piece: int, *, micro_batches: int) -> int:
    """Return the version for a piece at every stage with one update a mini-batch and two versions (PipeDream-2BW).

    Args:
        piece: number of the piece.
        micro_batches: micro-batches in a mini-batch.
    """
    return max(0, piece // micro_batches - 1)
