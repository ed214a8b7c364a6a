"""The state of a learner in main memory, from which a learner on any device goes on."""

from __future__ import annotations

from typing import Any

from ropewalk.pipeline.tracing.trees import map_tensors
from ropewalk.rl.learners.learner import Learner


def portable_state(learner: Learner) -> dict[str, Any]:
    """Return the learner's state with all tensors on the CPU.

    A forked child writes it, and a child of a process that uses CUDA cannot use it.
    """
    state: dict[str, Any] = map_tensors(lambda tensor: tensor.detach().cpu(), learner.state_dict())
    return state


__all__ = ["portable_state"]
