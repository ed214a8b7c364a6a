"""Which way a bucket travels, decided from figures alone."""

from __future__ import annotations

from collections import Counter

import pytest

from ropewalk.exchange.crossover import Crossover, Figures, Mode

DENSE_BYTES = 1_000_000


def modes(
    rounds: int, *, bandwidth: float, local_s: float, density: float, first_density: float = 1.2, probe_every: int = 50
) -> list[Mode]:
    """How a bucket travels over a link (bytes per second), where kernels take `local_s`."""
    crossover, figures, found = Crossover(DENSE_BYTES, probe_every=probe_every), None, list[Mode]()
    for _ in range(rounds):
        before = found[-1] if found else None
        mode = crossover.advance(figures)
        if mode is Mode.SPARSE:
            fresh = before is None or before is Mode.BYPASS
            size_bytes = int(DENSE_BYTES * (first_density if fresh else density))
        else:
            size_bytes = DENSE_BYTES
        found.append(mode)
        local = 0.0 if mode is Mode.BYPASS else local_s
        figures = Figures(local, size_bytes / bandwidth, size_bytes) if crossover.measured else None
    return found


def test_a_slow_link_never_sees_whole_gradients() -> None:
    assert set(modes(300, bandwidth=1e6, local_s=0.01, density=0.05)) == {Mode.SPARSE}


def test_a_link_quicker_than_the_kernels_is_left_to_whole_gradients() -> None:
    found = modes(400, bandwidth=1e9, local_s=0.01, density=0.05, probe_every=90)
    assert Counter(found)[Mode.BYPASS] > 0.9 * len(found)
    # And the others are looked at again, because links change.
    assert Mode.SPARSE in found[50:]


def test_messages_that_are_too_long_for_now_leave_the_state_learning() -> None:
    found = modes(60, bandwidth=1e7, local_s=0.01, density=1.5)
    assert Counter(found)[Mode.DENSE] > 40
    assert Mode.BYPASS not in found
    # Not for ever: in the end the kernels have been for nothing.
    assert Mode.BYPASS in modes(300, bandwidth=1e7, local_s=0.01, density=1.5)


def test_sparse_messages_are_kept_where_they_are_a_little_quicker() -> None:
    found = modes(300, bandwidth=1e7, local_s=0.01, density=0.6)
    assert Counter(found)[Mode.SPARSE] > 0.9 * len(found)
    assert Mode.BYPASS not in found


def test_the_slowest_kernel_and_the_shortest_wait_count() -> None:
    told = [Figures(0.1, 0.9, 10), Figures(0.3, 0.5, 20)]
    assert Figures.agreed(told) == Figures(0.3, 0.5, 20)


def test_a_fixed_mode_is_never_left_and_costs_no_figures() -> None:
    crossover = Crossover(DENSE_BYTES, Mode.DENSE)
    assert [crossover.advance(None) for _ in range(20)] == [Mode.DENSE] * 20
    assert not crossover.measured
    assert crossover.coming is Mode.DENSE


def test_there_is_no_mode_before_the_first_round() -> None:
    with pytest.raises(RuntimeError, match="advance"):
        _ = Crossover(DENSE_BYTES).mode
