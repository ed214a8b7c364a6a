"""Numbers that are compared to the last bit are computed by one thread: sums are then cut into the same parts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def one_thread() -> Iterator[None]:
    torch = pytest.importorskip("torch")  # schedules and plans are tested without it
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield
    torch.set_num_threads(before)
