"""A layer that computes nothing and takes its time: a stage of such layers is an emulated device.

Forward, input gradient and weight gradient sleep for their seconds, apart. The weight is a real one, in a small linear
call, so that a split backward leaves it to W; there a hook of it sleeps. Activations and gradients are as large as
asked for, and nobody writes them anew: a device would do that, not the cores that are shared here.

    y = 0, but y[0, 0] = x[0, 0] (1 + w)        gradients are true but for that x[0, 0] is a constant in the product

`time.sleep` comes back late: by 50 µs for the timer's slack, which is switched off here, and by some 30 to 100 µs until
a sleeping core is awake. Each process aims earlier, by what it came late before (a running mean, at most 150 µs), so
that a mean duration is exact and no core spins. What a busy machine adds beyond this counts, as it would on any device
whose host is late.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import Function
from torch.nn import functional

_PR_SET_TIMERSLACK = 29
#: No core needs longer to wake; who comes later was kept from running.
_MOST_S = 150e-6


class _Sleeper:
    """Sleeps until a time, and learns by how much it comes late."""

    def __init__(self) -> None:
        self._late_s = 30e-6
        self._has_no_slack = False

    def until(self, deadline_s: float) -> None:
        if not self._has_no_slack:  # of the thread; each process computes in one
            ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
            self._has_no_slack = True
        aim_s = deadline_s - self._late_s
        left_s = aim_s - time.perf_counter()
        if left_s > 0:
            time.sleep(left_s)
            late_s = min(max(0.0, time.perf_counter() - aim_s), _MOST_S)
            self._late_s += 0.1 * (late_s - self._late_s)


_SLEEPER = _Sleeper()
sleep_until = _SLEEPER.until


class Sleeping(nn.Module):
    """One layer of an emulated device; its inputs have two dimensions, and only their first element counts.

    Args:
        forward_s: of a micro-batch, like the others.
        input_gradient_s: of the first half of a backward.
        weight_gradient_s: of the second.
    """

    def __init__(self, forward_s: float, input_gradient_s: float, weight_gradient_s: float) -> None:
        super().__init__()
        self.seconds = forward_s, input_gradient_s, weight_gradient_s
        self.weight = nn.Parameter(torch.full((1, 1), 0.01))

    def forward(self, x: Tensor) -> Tensor:
        begun_s = time.perf_counter()
        forward_s, input_gradient_s, weight_gradient_s = self.seconds
        _sleep_in_gradient(self.weight, weight_gradient_s)
        shift = functional.linear(x.detach()[:1, :1].clone(), self.weight)
        y = cast("Tensor", cast("Any", _Passing).apply(x, shift, input_gradient_s))
        sleep_until(begun_s + forward_s)
        return y


class _Passing(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, shift: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        return _with_first(x, x[:1, :1] + shift)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        begun_s = time.perf_counter()
        first = gradient[:1, :1].clone()
        in_x = _with_first(gradient, first)
        sleep_until(begun_s + ctx.seconds)
        return in_x, first, None


#: What lies in the device's memory, so to say: zeros that nobody has to write again.
_ZEROS: list[Tensor] = []
_NUM_ZEROS = 16


def _with_first(like: Tensor, first: Tensor) -> Tensor:
    """Zeros but for the first element, in memory that is used again: what is sent is copied long before."""
    if not _ZEROS or _ZEROS[0].shape != like.shape:
        _ZEROS[:] = [torch.zeros_like(like) for _ in range(_NUM_ZEROS)]
    _ZEROS.append(_ZEROS.pop(0))
    _ZEROS[-1][:1, :1] = first
    return _ZEROS[-1].detach()


_has_hooks = True


@contextmanager
def without_hooks() -> Generator[None]:
    """Hook nothing to the weights that a forward reads here: a trainer traces its model, and refuses one with hooks.

    The weights with which its stages compute are copies, which get their hooks there.
    """
    global _has_hooks
    _has_hooks = False
    try:
        yield
    finally:
        _has_hooks = True


def _sleep_in_gradient(weight: Tensor, seconds: float) -> None:
    """Once for each of the tensors that hold versions of a weight."""
    if _has_hooks and weight.requires_grad and not getattr(weight, "sleeps", False):
        weight.sleeps = True  # pyright: ignore[reportAttributeAccessIssue]
        weight.register_hook(lambda _: sleep_until(time.perf_counter() + seconds))
