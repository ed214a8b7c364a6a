"""A model that is larger than what any process may take is trained, from the numbers that its factory gives it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from torch.nn import functional

from ropewalk.training.building import build
from tests.pipeline.reference_process import MicroBatched
from tests.training.large_model import STEPS, batch, factory, sgd


@pytest.mark.soak
@pytest.mark.usefixtures("one_thread")
def test_a_model_larger_than_every_process_trains_as_one_process_would() -> None:
    # Blocks of a size that was freed before come from the heap else, where holes that nobody touched count as taken.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
    command = [sys.executable, "-m", "tests.training.large_model"]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    found = json.loads(ran.stdout.splitlines()[-1])
    assert "alloc" in found["whole"], "the limit is real: nobody could have built the model"
    reference = MicroBatched(build(factory, 0, keep=None).model, functional.mse_loss, sgd, 2)
    for step in range(STEPS):
        losses = reference.step(*batch(step))
        assert found["losses"][step] == pytest.approx(float(sum(losses)) / len(losses), rel=1e-6)
