"""Which version of the weights a piece uses, against what the papers' pictures show."""

from __future__ import annotations

import pytest

from ropewalk.pipeline.versions import double_buffered, stashed, synchronised, warm_up


@pytest.mark.parametrize(
    ("workers_after", "replicas", "pieces"),
    [(0, 1, 0), (0, 3, 0), (3, 1, 3), (3, 2, 2), (4, 2, 2), (5, 2, 3), (1, 4, 1)],
)
def test_a_replica_admits_enough_to_keep_all_workers_after_it_busy(
    workers_after: int, replicas: int, pieces: int
) -> None:
    assert warm_up(workers_after, replicas) == pieces


@pytest.mark.parametrize(
    ("workers_after", "versions"),
    [(3, [0, 0, 0, 0, 1, 2, 3]), (2, [0, 0, 0, 1, 2, 3, 4]), (1, [0, 0, 1, 2, 3, 4, 5]), (0, [0, 1, 2, 3, 4, 5, 6])],
)
def test_with_weight_stashing_each_of_four_stages_takes_the_newest_it_has(
    workers_after: int, versions: list[int]
) -> None:
    """PipeDream (SOSP'19), figure 8: the startup of a pipeline of four stages."""
    assert [stashed(piece, workers_after=workers_after, replicas=1) for piece in range(7)] == versions


def test_replicas_share_the_pieces_and_count_their_own() -> None:
    versions = [stashed(piece, workers_after=1, replicas=2) for piece in range(8)]
    assert versions == [0, 0, 0, 0, 1, 1, 2, 2]


def test_with_vertical_sync_all_stages_take_what_the_first_one_has() -> None:
    assert [synchronised(piece, num_stages=4, replicas=1) for piece in range(7)] == [0, 0, 0, 0, 1, 2, 3]
    assert [synchronised(piece, num_stages=2, replicas=2) for piece in range(8)] == [0, 0, 0, 0, 1, 1, 2, 2]


def test_with_two_buffers_a_mini_batch_uses_what_the_one_before_the_last_made() -> None:
    """PipeDream-2BW (2006.09503), section 3.1."""
    versions = [double_buffered(piece, micro_batches=3) for piece in range(12)]
    assert versions == [0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2]
