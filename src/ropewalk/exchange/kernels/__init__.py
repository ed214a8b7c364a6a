"""The inner loops of sparse exchanges: select the components to send, and add those that arrived.

There is one function each, for flat tensors of any device; the implementation depends on the tensor and on what is
installed:

    CPU, float32 or float64      numba (large vectors, where it is installed), else numpy: the same bits
    everything else              torch operations; the selection comes to the host, because it is to be sent

They run in the calling thread alone, because the backward needs the other cores.
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

COMPILED_FROM = 1 << 20
"""Below this size numpy takes about a millisecond; numba takes more than one second, once, to load compiled code."""
NUMBERS_COMPILED_FROM = 1 << 15
"""The same for numbers that are packed into bits: of a smaller vector fewer are usually selected."""


def gd_sec_select(
    gradient: Tensor,
    memory: Tensor | None,
    error: Tensor | None,
    reference: Tensor | float | None,
    factor: float | Tensor,
    new_error: Tensor,
) -> Selection:
    """Select the components of `D = gradient - memory + error` with `|D| > factor * |reference|`, in one pass.

    Components that are not sent form the new error. NaN is sent, so that it never stays in the error.

    Args:
        gradient: flat; not changed.
        memory: the sum of what was sent (GD-SEC's h_m), flat; None for zeros.
        error: the residual (e_m), flat; None for zeros.
        reference: by component, or one number for all; None sends everything but zeros.
        factor: not negative; by component, or one number for all.
        new_error: overwritten by D, and 0 where D is sent; decides dtype and device. Must not be one of the others.

    Returns:
        Indices and values of the selected components.
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
    """Select components of a flat tensor with magnitudes above the threshold (by component, or one for all).

    Args:
        vector: one-dimensional, of any device and float dtype.
        threshold: not negative; one-dimensional like `vector`, or one number.
    """
    base, scale = _rule(1.0, threshold)
    kernels = _kernels(vector)
    if kernels is None:
        return torch_kernels.select(vector, (base, scale))
    return kernels.select(_array(vector), Rule(_array(base), scale if isinstance(scale, float) else _array(scale)))


def scatter_add(out: Tensor, indices: Indices, values: Floats, scale: float = 1.0) -> None:
    """Add `scale * values` to a flat tensor at `indices`, which must be distinct and in range.

    Args:
        out: one-dimensional; changed in place.
        indices: one-dimensional, int32.
        values: one for each index.
        scale: factor of the values.
    """
    kernels = _kernels(out)
    if kernels is None:
        torch_kernels.scatter_add(out, indices, values, scale)
    else:
        array = _array(out)
        kernels.scatter_add(array, indices, values.astype(array.dtype, copy=False), scale)


def bit_kernels(count: int) -> Any:
    """Return the module that packs and unpacks `count` numbers."""
    return (_compiled("numba_bits") if count >= NUMBERS_COMPILED_FROM else None) or numpy_bits


def _rule(reference: Tensor | float | None, factor: float | Tensor) -> tuple[Tensor | None, Tensor | float]:
    if isinstance(reference, Tensor):
        return reference, factor
    size = 0.0 if reference is None else abs(float(reference))
    if isinstance(factor, Tensor):
        return factor, size
    return None, float(factor) * size


def _kernels(tensor: Tensor) -> Any:
    """Return the kernel module for this tensor; None for torch's own operations."""
    if tensor.device.type != "cpu" or tensor.dtype not in (torch.float32, torch.float64):
        return None
    return (_compiled("numba_kernels") if tensor.numel() >= COMPILED_FROM else None) or numpy_kernels


@functools.cache
def _compiled(module: str) -> ModuleType | None:
    try:
        return importlib.import_module(f"{__name__}.{module}")
    except ImportError:
        # Numba is not installed, or does not support this version of numpy.
        return None


def _array(tensor: Any) -> Any:
    return tensor.detach().numpy() if isinstance(tensor, Tensor) else tensor
