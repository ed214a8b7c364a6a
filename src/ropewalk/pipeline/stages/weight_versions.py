"""Versions of a stage's weights: a ring of sets of leaf tensors, and the optimizer that steps the newest.

A forward binds a version, and its backward must see the same numbers. Autograd saves the leaves themselves, so their
values cannot be replaced in between: for Conv2d, LayerNorm, BatchNorm and products with a parameter, a changed `.data`
gives silently wrong gradients. So each live version has leaves and storage of its own:

    slot 0   version 3 (newest)   ◀── the optimizer's parameters
    slot 1   version 2            ◀── held by micro-batches 5 and 6, between forward and backward
    slot 2   free

    step:  is the newest version held?  no:  step in place, slot 0 becomes version 4
                                        yes: copy slot 0 to slot 2, rebind the optimizer to it, step there

PipeDream (SOSP'19, section 3.3) keeps a queue of clones instead: three copies of the
weights for each mini-batch; here it is at most one for each update.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.errors import ScheduleInvalid

OptimizerFactory = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
"""Makes the optimizer of a stage from its trainable parameters."""


class WeightVersions:
    """The weights of one stage on one replica, in all versions that may still be needed.

    Args:
        parameters: initial values by name; they are copied, unless `owns` is True.
        make_optimizer: called once with the trainable parameters, if there are any.
        slots: number of versions that can exist at once.
        lag: how many versions before the newest a forward may still ask for; those are kept even if not held.
        owns: whether the initial tensors belong to this object from now on.
        rate_factor: what the optimizer's learning rates are multiplied by during each step, and only then: what its
            schedule makes of them, and what is saved of them, does not depend on it.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        make_optimizer: OptimizerFactory,
        *,
        slots: int = 1,
        lag: int = 0,
        owns: bool = False,
        rate_factor: float = 1.0,
    ) -> None:
        values = {name: p.detach() if owns else p.detach().clone() for name, p in parameters.items()}
        first = {name: nn.Parameter(values[name], p.requires_grad) for name, p in parameters.items()}
        self._slots = [first]
        for _ in range(max(slots, lag + 1) - 1):
            # Parameters that are not trained are the same in all versions.
            self._slots.append(
                {n: nn.Parameter(torch.empty_like(p)) if p.requires_grad else p for n, p in first.items()}
            )
        self._lag = lag
        self._rate_factor = rate_factor
        self._slot_of = {0: 0}
        self._holders: dict[int, int] = {}
        self.newest = 0
        self.trainable = tuple(name for name, parameter in first.items() if parameter.requires_grad)
        self.optimizer = make_optimizer([first[name] for name in self.trainable]) if self.trainable else None
        self.num_copies = 0
        """How often weights were copied, and the largest number of versions at once: the schedule promises bounds for
        both."""
        self.most_versions = 1

    @property
    def versions(self) -> tuple[int, ...]:
        """The versions that exist, oldest first."""
        return tuple(sorted(self._slot_of))

    @property
    def num_slots(self) -> int:
        """The number of versions that can exist at once."""
        return len(self._slots)

    @cached_property
    def weight_bytes(self) -> int:
        """The size of one version in bytes."""
        return sum(parameter.nbytes for parameter in self._slots[0].values())

    @cached_property
    def version_bytes(self) -> int:
        """Bytes that a further version takes: those of the trained parameters, as the others are shared."""
        return sum(self._slots[0][name].nbytes for name in self.trainable)

    @property
    def parameters(self) -> Mapping[str, nn.Parameter]:
        """The newest weights by name."""
        return self._slots[self._slot_of[self.newest]]

    def hold(self, version: int | None) -> int:
        """Keep a version (the newest if None) until `release`; return its number."""
        version = self.newest if version is None else version
        if version not in self._slot_of:
            raise ScheduleInvalid(
                f"version {version} of the weights is asked for, but only {list(self.versions)} live; "
                f"a schedule may ask for versions up to {self._lag} behind the newest"
            )
        self._holders[version] = self._holders.get(version, 0) + 1
        return version

    def leaves(self, version: int) -> Mapping[str, nn.Parameter]:
        """Return the leaf tensors of a version that is held, by name."""
        return self._slots[self._slot_of[version]]

    def release(self, version: int) -> None:
        """Stop holding a version whose backward is done."""
        self._holders[version] -= 1
        if not self._holders[version]:
            del self._holders[version]
            if version != self.newest:
                self._forget(self.newest)

    def step(self, gradients: Mapping[str, Tensor]) -> None:
        """Make the next version by one step of the optimizer with these gradients, which it may change."""
        self._forget(self.newest + 1)
        slot = self._slot_of[self.newest]
        is_kept = self._lag > 0 or any(self._slot_of[held] == slot for held in self._holders)
        if self.optimizer is not None:
            if is_kept:
                slot = self._copy_to_free_slot(slot)
            leaves = self._slots[slot]
            for name in self.trainable:
                leaves[name].grad = gradients.get(name)
            self._optimize(self.optimizer)
            for name in self.trainable:
                leaves[name].grad = None
        if not is_kept:
            del self._slot_of[self.newest]
        self.newest += 1
        self._slot_of[self.newest] = slot
        self.most_versions = max(self.most_versions, len(self._slot_of))

    def skip(self) -> None:
        """Make a next version with the weights of the newest."""
        self._forget(self.newest + 1)
        slot = self._slot_of[self.newest]
        if not (self._holders.get(self.newest) or self._lag > 0):
            del self._slot_of[self.newest]
        self.newest += 1
        self._slot_of[self.newest] = slot

    def restore(self, newest: int, older: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Restore the versions of a snapshot: the newest weights here get the number `newest`; others are added."""
        slot = self._slot_of[self.newest]
        free = [other for other in range(len(self._slots)) if other != slot]
        if len(older) > len(free):
            raise ScheduleInvalid(
                f"{len(older) + 1} versions of the weights were taken, and there is room for {len(self._slots)} here; "
                f"give them to a stage of the same plan and schedule"
            )
        self._slot_of = {newest: slot}
        self._holders, self.newest = {}, newest
        with torch.no_grad():
            for version, target in zip(older, free, strict=False):
                self._slot_of[version] = target
                for name in self.trainable:
                    self._slots[target][name].copy_(older[version][name])
        self.most_versions = max(self.most_versions, len(self._slot_of))

    def _optimize(self, optimizer: torch.optim.Optimizer) -> None:
        if self._rate_factor == 1.0:
            optimizer.step()
            return
        groups: list[dict[str, Any]] = optimizer.param_groups
        rates = [group["lr"] for group in groups]
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate * self._rate_factor
        try:
            optimizer.step()
        finally:
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate

    def _forget(self, newest: int) -> None:
        """Drop the versions that are not held and that, once there is a version `newest`, cannot be asked for."""
        for version in self.versions:
            if version < min(newest - self._lag, self.newest) and version not in self._holders:
                del self._slot_of[version]

    def _copy_to_free_slot(self, source: int) -> int:
        free = set(range(len(self._slots))) - set(self._slot_of.values())
        if not free:
            raise ScheduleInvalid(
                f"all {len(self._slots)} sets of weights are in use by versions {list(self.versions)} when version "
                f"{self.newest + 1} is made; the schedule promised that {len(self._slots)} are enough"
            )
        target = min(free)
        with torch.no_grad():
            for name in self.trainable:
                self._slots[target][name].copy_(self._slots[source][name])
        self.num_copies += 1
        assert self.optimizer is not None
        rebind(self.optimizer, {self._slots[source][name]: self._slots[target][name] for name in self.trainable})
        return target


def rebind(optimizer: torch.optim.Optimizer, replacements: Mapping[Tensor, Tensor]) -> None:
    """Let an optimizer step other tensors, each with the state of the one that it replaces."""
    groups: list[dict[str, Any]] = optimizer.param_groups
    for group in groups:
        group["params"][:] = [replacements.get(parameter, parameter) for parameter in group["params"]]
    state: dict[Any, Any] = optimizer.state
    for before, after in replacements.items():
        if before in state:
            state[after] = state.pop(before)
