"""Broadcasts that give all members the same weights before the first step, and after a member has joined.

Tensors are fused into byte buffers, so that a model of many small layers takes few broadcasts. Every member calls these
functions between steps, with the same model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ropewalk.errors import ExchangeInvalid
from ropewalk.exchange.buckets import BUCKET_BYTES
from ropewalk.exchange.distributed_optimizer import DistributedOptimizer
from ropewalk.exchange.groups.group import Group
from ropewalk.exchange.packed_state import pack, unpack


def broadcast_parameters(
    tensors: nn.Module | Iterable[tuple[str, Tensor]], group: Group, root: int = 0, *, fused_bytes: int = BUCKET_BYTES
) -> None:
    """Replace parameters and buffers by those of one member.

    Args:
        tensors: a module, or names and tensors such as `model.named_parameters()` or `model.state_dict().items()`.
        group: the group whose members call this.
        root: rank of the member whose values all members get.
        fused_bytes: size in bytes up to which tensors travel together.

    Raises:
        ExchangeInvalid: there is no such rank.
    """
    _check_root(group, root)
    module = isinstance(tensors, nn.Module)
    pairs = cast(Iterable[tuple[str, Tensor]], tensors.state_dict(keep_vars=True).items()) if module else tensors
    with torch.no_grad():
        for together in _fused([tensor.detach() for _, tensor in pairs if tensor.numel()], fused_bytes):
            flat = torch.cat([tensor.contiguous().view(-1).view(torch.uint8) for tensor in together])
            group.broadcast(flat, root, "parameters")
            start = 0
            for tensor in together:
                part = flat[start : start + tensor.nbytes]
                # A part may begin at an address that its dtype does not allow; a copy is aligned for any dtype.
                tensor.copy_(part.clone().view(tensor.dtype).view(tensor.shape))
                start += tensor.nbytes


def broadcast_optimizer_state(optimizer: Optimizer, group: Group, root: int = 0) -> None:
    """Replace an optimizer's state (momenta, counts, learning rates) by that of one member, which may have none yet.

    The state of the exchange of a `DistributedOptimizer` is each member's own and stays.

    Args:
        optimizer: optimizer of parameters in the same order on every member.
        group: the group whose members call this.
        root: rank of the member whose state all members get.

    Raises:
        ExchangeInvalid: there is no such rank.
    """
    _check_root(group, root)
    distributed = isinstance(optimizer, DistributedOptimizer)
    written = b""
    if group.rank == root:
        written = pack(optimizer.replicated_state() if distributed else optimizer.state_dict())
    ((_, (size,)), *_) = group.all_gather(memoryview(b""), [len(written)], "size of optimizer state")[root:]
    flat = torch.zeros(size, dtype=torch.uint8)
    if group.rank == root:
        flat.copy_(torch.frombuffer(bytearray(written), dtype=torch.uint8))
    group.broadcast(flat, root, "optimizer state")
    if group.rank != root:
        optimizer.load_state_dict(unpack(bytes(flat.numpy())))


def _check_root(group: Group, root: int) -> None:
    if not 0 <= root < group.size:
        raise ExchangeInvalid(f"there is no rank {root} to broadcast from in a group of {group.size}")


def _fused(tensors: Sequence[Tensor], fused_bytes: int) -> Iterator[list[Tensor]]:
    """Group neighbouring tensors of one device up to a size in bytes."""
    together: list[Tensor] = []
    for tensor in tensors:
        full = together and sum(one.nbytes for one in together) + tensor.nbytes > fused_bytes
        if full or (together and together[0].device != tensor.device):
            yield together
            together = []
        together.append(tensor)
    if together:
        yield together
