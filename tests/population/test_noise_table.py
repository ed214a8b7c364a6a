"""Noise tables: what is in them, and where draws lie."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from ropewalk.population import noise_table
from ropewalk.population.noise_table import NoiseTable


def test_the_numbers_are_standard_normal_and_cannot_be_written_to() -> None:
    array = NoiseTable(100_000, seed=3).array
    assert array.dtype == np.float32
    assert abs(array.mean()) < 0.01
    assert abs(array.std() - 1) < 0.01
    assert abs(np.corrcoef(array[:-1], array[1:])[0, 1]) < 0.01
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 0


def test_the_table_is_the_same_for_any_number_of_threads_and_as_long_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise_table, "_CHUNK", 1 << 10)
    with monkeypatch.context() as alone:
        alone.setattr(noise_table, "_MOST_THREADS", 1)
        table = NoiseTable(5_000, seed=4).array.copy()
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    np.testing.assert_array_equal(NoiseTable(5_000, seed=4).array, table)
    np.testing.assert_array_equal(NoiseTable(4_500, seed=4).array, table[:4_500])
    assert len(np.unique(table)) > 4_990, "chunks repeat each other"


def test_another_seed_gives_other_numbers() -> None:
    assert not np.any(NoiseTable(64, seed=1).array == NoiseTable(64, seed=2).array)


def test_copies_of_a_table_are_one_memory_in_a_process() -> None:
    table = NoiseTable(1_000, seed=5)
    copy: NoiseTable = pickle.loads(pickle.dumps(table))
    assert copy == table
    assert len(pickle.dumps(table)) < 100
    assert copy.array.ctypes.data == table.array.ctypes.data


def test_indices_are_uniform_and_keep_every_slice_inside() -> None:
    table = NoiseTable(1_000)
    indices = [table.index(7, number, 991) for number in range(5_000)]
    counts = np.bincount(indices, minlength=10)
    assert len(counts) == 10, "0 to 9 are all the places where 991 numbers fit"
    assert counts.min() > 400
    others = [table.index(8, number, 991) for number in range(5_000)]
    assert sum(one == other for one, other in zip(indices, others, strict=True)) < 700
    assert table.index(7, 1, 1_000) == 0


def test_indices_are_the_same_everywhere_and_for_ever() -> None:
    """Replays and checkpoints of old runs depend on these."""
    table = NoiseTable(2**25)
    assert [table.index(seed, number, 1_000) for seed, number in ((0, 0), (0, 1), (2**64 - 1, 5))] == [
        9454058,
        21891886,
        17173129,
    ]


def test_what_does_not_fit_says_which_table_would() -> None:
    table = NoiseTable(1_000)
    with pytest.raises(ValueError, match=r"1001 numbers does not fit into a noise table of 1000; .*size=16384"):
        table.index(0, 0, 1_001)
    with pytest.raises(ValueError, match="10 numbers from 991 on"):
        table.slice(991, 10)
    with pytest.raises(ValueError, match="-1 on"):
        table.slice(-1, 10)
    np.testing.assert_array_equal(table.slice(990, 10), table.array[990:])


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match="1 or more, not 0"):
        NoiseTable(0)
    with pytest.raises(ValueError, match="0 or more, not -1"):
        NoiseTable(1, seed=-1)
