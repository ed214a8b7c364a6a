"""`Unrolls`: a batch of blocks as time-major tensors, the form that on-policy losses take.

A batch of B blocks has columns [B, T+1, N, ...] and [B, T, N, ...]. The B blocks of N environments become M = B N
columns of one unroll: [T+1, M, ...] and [T, M, ...].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from ropewalk.rl.environments.spec import Array, observation_of

Tensors: TypeAlias = "Tensor | dict[str, Tensor]"
"""Observations as a tensor, or several by name."""

STATE = "state."
"""Begins the names of columns of recurrent state."""


@dataclass(frozen=True, slots=True)
class Unrolls:
    """M environments in T consecutive steps; see `ropewalk.rl.blocks` for the meaning of the parts.

    Attributes:
        observation: [T+1, M, ...].
        first: [T+1, M] bool.
        action: [T, M, ...].
        reward: [T, M] float32.
        terminated: [T, M] bool.
        truncated: [T, M] bool.
        mask: [T, M] bool; steps where it is False are in no loss and in no mean.
        log_prob: [T, M], of the actions, by the policy that chose them.
        state: recurrent state before step 0, [M, ...] each.
    """

    observation: Tensors
    first: Tensor
    action: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    mask: Tensor
    log_prob: Tensor
    state: dict[str, Tensor]


def unrolls_of(columns: Mapping[str, Array], device: torch.device) -> Unrolls:
    """Return the columns of a batch of blocks, shape [B, ...] each, as tensors on a device."""

    def tensor(array: Array) -> Tensor:
        return torch.as_tensor(time_major(array), device=device)

    observation = observation_of(columns)
    return Unrolls(
        observation={name: tensor(array) for name, array in observation.items()}
        if isinstance(observation, dict)
        else tensor(observation),
        first=tensor(columns["first"]),
        action=tensor(columns["action"]),
        reward=tensor(columns["reward"]),
        terminated=tensor(columns["terminated"]),
        truncated=tensor(columns["truncated"]),
        mask=tensor(columns["mask"]),
        log_prob=tensor(columns["log_prob"]),
        state={
            name.removeprefix(STATE): torch.as_tensor(array.reshape(-1, *array.shape[2:]), device=device)
            for name, array in columns.items()
            if name.startswith(STATE)
        },
    )


def time_major(array: Array) -> Array:
    """Return [T, B N, ...] for [B, T, N, ...]: column `b N + n` is environment n of block b; a new array."""
    moved = np.moveaxis(array, 0, 1)
    return np.array(moved).reshape(moved.shape[0], moved.shape[1] * moved.shape[2], *array.shape[3:])


__all__ = ["Tensors", "Unrolls", "time_major", "unrolls_of"]
