"""Here, too, numbers are compared to the last bit; and processes of stages know what the tests are made of."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import ropewalk as rw
from tests.pipeline.conftest import one_thread
from tests.shared_session import kept

__all__ = ["one_thread"]


@pytest.fixture(scope="package")
def trainings(_stages_know_the_tests: None) -> Iterator[rw.Session]:
    """A session for the trainings of all modules: what their stages are forked from takes 3 s to import torch."""
    from tests.training.faulty_training import Job, batch  # which import torch

    with rw.Session() as session:
        with Job(num_steps=1).trainer(session) as trainer:  # what the first one starts and opens, stays
            trainer.step(*batch(0))
        kept.of_folder = session
        yield session
        kept.of_folder = None


@pytest.fixture(scope="package", autouse=True)
def _stages_know_the_tests() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    """What stages are forked from imports the models and optimizers of tests; each process would, for itself."""
    stage_fleet = pytest.importorskip("ropewalk.training.stage_fleet")
    ours = ("tests.training.faulty_training", "tests.training.parity_cases")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage_fleet, "PRELOADED", (*stage_fleet.PRELOADED, *ours))
        yield
