"""Backward passes: callbacks for each gradient when it is accumulated, and for the end of the pass.

    loss.backward() ── accumulated(a) ── accumulated(b) ── ... ── ended() ── returns

DistributedDataParallel too waits for its buckets inside of the backward, so that code that reads gradients afterwards
(clipping, a GradScaler) sees the averaged ones. torch has hooks for gradients, and an undocumented queue of callbacks
for the end of a pass, which FSDP uses as well.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

_engine = cast(Any, torch.autograd.Variable)._execution_engine
_NODE_IN_PYTHON = cast(Any, BackwardCFunction).apply.__code__


class BackwardPasses:
    """Watches gradients of parameters; the callbacks run in the thread of the backward.

    Args:
        began: called at the first gradient of a pass.
        accumulated: called with name and parameter when its `grad` is complete for this pass.
        ended: called at the end of a pass, with whether it ran inside of another backward. Returns False where the pass
            goes on: a backward inside of a backward (`checkpoint(use_reentrant=True)`) ends by itself, and gradients of
            the outer one follow.
    """

    def __init__(
        self, began: Callable[[], None], accumulated: Callable[[str, Tensor], None], ended: Callable[[bool], bool]
    ) -> None:
        self._began = began
        self._accumulated = accumulated
        self._ended = ended
        self._handles: list[Any] = []
        self._queued = False
        self.active = False

    def watch(self, name: str, parameter: Tensor) -> None:
        """Watch a parameter from now on."""
        handle = cast(Any, parameter).register_post_accumulate_grad_hook(functools.partial(self._hook, name))
        self._handles.append(handle)

    def reset(self) -> None:
        """Forget a pass that ended with an error, since its end is never reported."""
        self.active = self._queued = False

    def close(self) -> None:
        """Stop watching; may be called twice."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _hook(self, name: str, parameter: Tensor) -> None:
        if not self._queued:
            self._queued = True
            _engine.queue_callback(self._end)
        if not self.active:
            self.active = True
            self._began()
        self._accumulated(name, parameter)

    def _end(self) -> None:
        self._queued = False
        self.active = not self._ended(_inside_of_a_backward())


def _inside_of_a_backward() -> bool:
    """Whether the caller is the backward of a node, that is, an inner pass ends within an outer one."""
    frame = sys._getframe()  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        if frame.f_code is _NODE_IN_PYTHON:
            return True
        frame = frame.f_back
    return False
