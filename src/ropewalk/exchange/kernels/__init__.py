"""The inner loops of sparse exchanges: find what is worth sending, and add what arrived.

One function each, for flat tensors of any device; what is behind it depends on the tensor and on what is installed:

    CPU, float32 or float64      numba (large vectors, where it is installed), else numpy: the same bits
    everything else              torch operations; what is found comes to the host, because it is to be sent

They run in the calling thread alone; the backward needs the other cores.
"""

from __future__ import annotations

import functools
import importlib
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ropewalk.exchange.kernels import numpy_bits, numpy_kernels, torch_kernels
from ropewalk.exchange.kernels.selection import Floats, Indices, Rule, Selection

__all__ = ["Selection", "bit_kernels", "gd_sec_select", "scatter_add", "select_above"]

#: Below, numpy takes about a millisecond; numba takes more than one second, once, to load compiled code.
COMPILED_FROM = 1 << 20
#: The same, of numbers that are packed into bits: so many are rarely chosen of a smaller vector.
NUMBERS_COMPILED_FROM = 1 << 15


def gd_sec_select(
    gradient: Tensor,
    memory: Tensor | None,
    error: Tensor | None,
    reference: Tensor | float | None,
    factor: float | Tensor,
    new_error: Tensor,
) -> Selection:
    """Find the components of `D = gradient - memory + error` with `|D| > factor * |reference|`, in one pass.

    What is not sent is the new error. NaN is sent, so that it never stays in the error.

    Args:
        gradient: flat; not changed.
        memory: what was said so far (GD-SEC's h_m); None for zeros.
        error: what was kept back so far (e_m); None for zeros.
        reference: by component, or one number for all; None sends everything but zeros.
        factor: not negative; by component, or one for all.
        new_error: overwritten by D, and 0 where D is sent; decides dtype and device. Must not be one of the others.
    """
    if gradient.dtype != new_error.dtype:
        gradient = gradient.to(new_error.dtype)
    base, scale = _rule(reference, factor)
    kernels = _kernels(new_error)
    if kernels is None:
        return torch_kernels.gd_sec_select(gradient, memory, error, (base, scale), new_error)
    rule = Rule(_array(base), scale if isinstance(scale, float) else _array(scale))
    return kernels.gd_sec_select(_array(gradient), _array(memory), _array(error), rule, _array(new_error))


def select_above(vector: Tensor, threshold: float | Tensor) -> Selection:
    """Find the components of a flat tensor with a magnitude above the threshold (by component, or one for all)."""
    base, scale = _rule(1.0, threshold)
    kernels = _kernels(vector)
    if kernels is None:
        return torch_kernels.select(vector, (base, scale))
    return kernels.select(_array(vector), Rule(_array(base), scale if isinstance(scale, float) else _array(scale)))


def scatter_add(out: Tensor, indices: Indices, values: Floats, scale: float = 1.0) -> None:
    """Add `scale * values` to a flat tensor at the indices, of which none may come twice or lie outside."""
    kernels = _kernels(out)
    if kernels is None:
        torch_kernels.scatter_add(out, indices, values, scale)
    else:
        array = _array(out)
        kernels.scatter_add(array, indices, values.astype(array.dtype, copy=False), scale)


def bit_kernels(count: int) -> Any:
    """The module that packs and unpacks so many numbers."""
    return (_compiled("numba_bits") if count >= NUMBERS_COMPILED_FROM else None) or numpy_bits


def _rule(reference: Tensor | float | None, factor: float | Tensor) -> tuple[Tensor | None, Tensor | float]:
    if isinstance(reference, Tensor):
        return reference, factor
    size = 0.0 if reference is None else abs(float(reference))
    if isinstance(factor, Tensor):
        return factor, size
    return None, float(factor) * size


def _kernels(tensor: Tensor) -> Any:
    """The module for this tensor; None for torch's own operations."""
    if tensor.device.type != "cpu" or tensor.dtype not in (torch.float32, torch.float64):
        return None
    return (_compiled("numba_kernels") if tensor.numel() >= COMPILED_FROM else None) or numpy_kernels


@functools.cache
def _compiled(module: str) -> ModuleType | None:
    try:
        return importlib.import_module(f"{__name__}.{module}")
    except ImportError:
        # Numba is not installed, or refuses this version of numpy.
        return None


def _array(tensor: Any) -> Any:
    return tensor.detach().numpy() if isinstance(tensor, Tensor) else tensor
