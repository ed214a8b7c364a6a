"""Target networks: slow copies of the network that is trained, which bootstrap values are taken from.

`TargetCopy` renews the copy from time to time (Mnih 2015), `Polyak` moves it by a small share after each update
(Lillicrap 2016). Both are settings; the copy itself is an ordinary module whose parameters need no gradient.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import nn

ModuleType = TypeVar("ModuleType", bound=nn.Module)


class TargetRule(ABC):
    """Says how a target network follows the online network."""

    @abstractmethod
    def follow(self, target: nn.Module, online: nn.Module, num_updates: int) -> None:
        """Change `target` in place after an update.

        Args:
            target: made by `target_of`.
            online: the network that was updated.
            num_updates: updates that were done, this one included.
        """


@dataclass(frozen=True, slots=True)
class TargetCopy(TargetRule):
    """The target network becomes equal to the online network after every `period` updates.

    Args:
        period: number of updates, at least 1.
    """

    period: int

    def __post_init__(self) -> None:
        """Refuse a period below 1."""
        if self.period < 1:
            raise ValueError(f"TargetCopy: period={self.period} updates; it must be at least 1")

    def follow(self, target: nn.Module, online: nn.Module, num_updates: int) -> None:
        """Copy all parameters and buffers, if `num_updates` is a multiple of the period."""
        if num_updates % self.period == 0:
            copy_weights(target, online)


@dataclass(frozen=True, slots=True)
class Polyak(TargetRule):
    """After every update, target = (1 - tau) target + tau online.

    Args:
        tau: share of the online network, above 0 and at most 1; 0.005 in SAC and TD3.
    """

    tau: float

    def __post_init__(self) -> None:
        """Refuse a share that is not one."""
        if not 0 < self.tau <= 1:
            raise ValueError(f"Polyak: tau={self.tau} must be above 0 and at most 1")

    @torch.no_grad()
    def follow(self, target: nn.Module, online: nn.Module, num_updates: int) -> None:
        """Move all parameters by the share tau; buffers are copied, for they may be counts."""
        del num_updates
        for mine, theirs in zip(target.parameters(), online.parameters(), strict=True):
            mine.lerp_(theirs, self.tau)
        for mine, theirs in zip(target.buffers(), online.buffers(), strict=True):
            mine.copy_(theirs)


def target_of(online: ModuleType) -> ModuleType:
    """Return a copy of `online` whose parameters need no gradient."""
    target = copy.deepcopy(online)
    target.requires_grad_(requires_grad=False)
    return target


@torch.no_grad()
def copy_weights(target: nn.Module, online: nn.Module) -> None:
    """Set all parameters and buffers of `target` to those of `online`."""
    for mine, theirs in zip(target.parameters(), online.parameters(), strict=True):
        mine.copy_(theirs)
    for mine, theirs in zip(target.buffers(), online.buffers(), strict=True):
        mine.copy_(theirs)


__all__ = ["Polyak", "TargetCopy", "TargetRule", "copy_weights", "target_of"]
