"""Here, too, numbers are compared to the last bit; and processes of stages know what the tests are made of."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.pipeline.conftest import one_thread

__all__ = ["one_thread"]


@pytest.fixture(scope="module", autouse=True)
def _stages_know_the_tests() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    """What stages are forked from imports the models and optimizers of tests; each process would, for itself."""
    stage_fleet = pytest.importorskip("ropewalk.training.stage_fleet")
    ours = ("tests.training.faulty_training", "tests.training.parity_cases")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage_fleet, "PRELOADED", (*stage_fleet.PRELOADED, *ours))
        yield
