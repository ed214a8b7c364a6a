"""The kernels in torch operations, for devices and dtypes that numpy does not support; results come to the host."""

from __future__ import annotations

import torch
from torch import Tensor

from ropewalk.exchange.kernels.selection import Floats, Indices, Selection

TensorRule = tuple[Tensor | None, Tensor | float]
"""The same as `selection.Rule`, for tensors."""


def gd_sec_select(
    gradient: Tensor, memory: Tensor | None, error: Tensor | None, rule: TensorRule, new_error: Tensor
) -> Selection:
    """Implement `kernels.gd_sec_select` for tensors."""
    if memory is None:
        new_error.copy_(gradient)
    else:
        torch.sub(gradient, memory, out=new_error)
    if error is not None:
        new_error.add_(error)
    hits = _hits(new_error, rule)
    found = _on_host(new_error, hits)
    new_error.index_fill_(0, hits, 0)
    return found


def select(vector: Tensor, rule: TensorRule) -> Selection:
    """Implement `kernels.select_above` for tensors and a rule."""
    return _on_host(vector, _hits(vector, rule))


def scatter_add(out: Tensor, indices: Indices, values: Floats, scale: float) -> None:
    """Implement `kernels.scatter_add` for tensors."""
    at = torch.as_tensor(indices).to(out.device, torch.int64)
    out.index_add_(0, at, torch.as_tensor(values).to(out) * scale)


def _hits(vector: Tensor, rule: TensorRule) -> Tensor:
    base, factor = rule
    limit = factor if base is None else base.abs().mul_(factor)
    return (vector.abs() <= limit).logical_not_().nonzero().view(-1)


def _on_host(vector: Tensor, hits: Tensor) -> Selection:
    values = vector[hits]
    if values.dtype not in (torch.float32, torch.float64):
        values = values.float()
    return Selection(hits.to("cpu", torch.int32).numpy(), values.cpu().numpy())
