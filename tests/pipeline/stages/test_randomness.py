"""Random numbers start over with each micro-batch, and go on from stage to stage."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ropewalk.pipeline.stages.randomness import SeededBlock, micro_batch_seed, seed_of_run, seeded_state

CPU = torch.device("cpu")


def test_seeds_differ_by_run_step_and_index() -> None:
    seeds = {micro_batch_seed(run, step, index) for run in range(4) for step in range(12) for index in range(12)}
    assert len(seeds) == 4 * 12 * 12
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert micro_batch_seed(0, 0, 0) == micro_batch_seed(0, 0, 0) != micro_batch_seed(0, 0, 0, "loss")


def test_the_seed_of_a_run_is_one_that_a_checkpoint_can_hold_and_give_back() -> None:
    # numpy's failed at the first save, and larger ones made checkpoints that were refused as damaged.
    assert type(seed_of_run(np.int64(-3))) is int
    assert seed_of_run(2**64 - 1) == 2**64 - 1
    with pytest.raises(ValueError, match=r"a whole number from -2\*\*63 to 2\*\*64 - 1, .* not 18446744073709551616"):
        seed_of_run(2**64)
    with pytest.raises(TypeError, match="seed is of type NoneType; give a whole number"):
        seed_of_run(None)


def test_the_state_behind_a_stretch_carries_on_its_numbers() -> None:
    state = seeded_state(5, CPU)
    torch.manual_seed(5)
    whole = torch.rand(6)
    first = SeededBlock(state, CPU)
    with first:
        head = torch.rand(4)
    with SeededBlock(first.state, CPU):
        tail = torch.rand(2)
    assert torch.equal(torch.cat([head, tail]), whole)
    with SeededBlock(state, CPU):
        assert torch.equal(torch.rand(4), head), "the state at the entry is not changed"


def test_the_numbers_outside_are_not_disturbed() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(9)
        expected = torch.rand(2)
        torch.manual_seed(9)
        with SeededBlock(seeded_state(5, CPU), CPU):
            torch.rand(3)
        assert torch.equal(torch.rand(2), expected)


def test_without_a_state_nothing_is_touched() -> None:
    with SeededBlock(None, CPU) as stretch:
        pass
    assert stretch.state is None
