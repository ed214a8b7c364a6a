"""Random numbers that do not depend on how a model is cut, scheduled, replicated or restarted.

Each micro-batch has a sequence of random numbers of its own, seeded by (run, step, index). The generator's state after
a stage travels with the activation to the next random stage, so that the numbers are those of one process that runs the
whole model:

    seed(run, step, index) ─▶ stage 0 ─▶ state ─▶ stage 1 ─▶ state ─▶ stage 2 ...

The loss draws from a sequence of its own, so that its numbers do not depend on which stage is the last to draw some.
A recomputation starts again from the state at the stage's entry. GPipe (section 2.3 of its paper; lingvo) seeds
micro-batches likewise, but does not pass on the state after each stage, so that its numbers change with the cut.
"""

from __future__ import annotations

import hashlib
from numbers import Integral
from types import TracebackType
from typing import Any, Literal

import torch
from torch import Tensor

from ropewalk.argument_kinds import check_kind
from ropewalk.pipeline.generator_states import set_state_of, state_of


def seed_of_run(given: Any) -> int:
    """Return the seed that a user has given, as Python's own int: checkpoints hold no numbers of numpy.

    Raises:
        TypeError: it is no whole number.
        ValueError: no generator of torch takes it, so that a checkpoint with it would not be read.
    """
    check_kind("seed", given, Integral, "a whole number", required=True)
    seed = int(given)
    if not -(1 << 63) <= seed < 1 << 64:
        raise ValueError(f"seed is a whole number from -2**63 to 2**64 - 1, as generators of torch take, not {seed}")
    return seed


def micro_batch_seed(run: int, step: int, index: int, purpose: Literal["", "loss", "data"] = "") -> int:
    """Return the seed of a micro-batch: 63 bits that differ between runs, steps and micro-batches.

    Args:
        run: the seed of the run.
        step: the number of the step in the run.
        index: the number of the micro-batch in the step.
        purpose: "" for the model, "loss" for the loss, "data" for mini-batches that are read from a step on.
    """
    place = f"{run}/{step}/{index}" + (f"/{purpose}" if purpose else "")
    digest = hashlib.blake2b(place.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def seeded_state(seed: int, device: torch.device) -> Tensor:
    """Return the state of a device's generator right after `torch.manual_seed(seed)`; a uint8 tensor."""
    return torch.Generator(device).manual_seed(seed).get_state()


class SeededBlock:
    """Runs a block with random numbers from a given state of the device's default generator.

    Afterwards `state` is the generator's state at the end of the block, and the generator is as it was before, so that
    the user's own random numbers are not disturbed. With None nothing is changed.

    Args:
        state: the state to begin from, as `torch.Generator.get_state` returns it.
        device: the device whose generator is used.
    """

    def __init__(self, state: Tensor | None, device: torch.device) -> None:
        self.state = state
        self._device = device
        self._outside: Tensor | None = None

    def __enter__(self) -> SeededBlock:
        if self.state is not None:
            self._outside = state_of(self._device)
            set_state_of(self._device, self.state)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._outside is not None:
            self.state = state_of(self._device)
            set_state_of(self._device, self._outside)
