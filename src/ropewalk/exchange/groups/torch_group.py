"""`TorchGroup`: a group over torch.distributed: gloo, NCCL, or whatever backend a process group has.

    all_gather of messages of any length      1. lengths and facts, int64, of fixed size
                                              2. one buffer of bytes, padded to the longest; none if all are empty

torch's gloo has no all-gather of uneven pieces, and its sparse all-reduce takes tens of times longer. The group has
a process group of its own, so that its collectives, begun by the communication thread, do not mix with others of the
process. gloo groups cannot shrink and do not encrypt: between hosts that is for networks one trusts; `LinkGroup` is
for the others.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from ropewalk.errors import ExchangeAborted, ExchangeInvalid, ExchangeStalled, MemberLost
from ropewalk.exchange.groups.board import Store, StoreBoard
from ropewalk.exchange.groups.group import Done, Group, Work
from ropewalk.exchange.traffic import Traffic, ring_bytes

# Torch's own types say little here, and its names change: all_gather_into_tensor is deprecated in 2.13.
_dist: Any = dist
_all_gather: Any = getattr(dist, "all_gather_single", None) or _dist.all_gather_into_tensor


class TorchGroup(Group):
    """A group of processes that torch.distributed has joined.

    Every member makes it, at the same point of its program.

    Args:
        process_group: whose members these are; None for all processes.
        ranks: some of them only (a process set), by their ranks in the whole world; only they make the group.
        timeout_s: how long a member may let the others wait.
        epoch: of the group.

    Raises:
        ExchangeInvalid: torch.distributed is not initialised, or this process is not one of `ranks`.
    """

    def __init__(
        self,
        process_group: dist.ProcessGroup | None = None,
        *,
        ranks: Sequence[int] | None = None,
        timeout_s: float = 300.0,
        epoch: int = 0,
    ) -> None:
        if not dist.is_initialized():
            raise ExchangeInvalid("torch.distributed is not initialised; call init_process_group first")
        everyone: list[int] = _dist.get_process_group_ranks(process_group or dist.group.WORLD)
        chosen = everyone if ranks is None else sorted(ranks)
        if dist.get_rank() not in chosen:
            raise ExchangeInvalid(f"rank {dist.get_rank()} is not one of {chosen}; only members make the group")
        backend = None if process_group is None else dist.get_backend(process_group)
        self._process_group: Any = _dist.new_group(
            chosen, timeout=timedelta(seconds=timeout_s), backend=backend, use_local_synchronization=True
        )
        self.rank = chosen.index(dist.get_rank())
        self.size = len(chosen)
        self.epoch = epoch
        self.members = tuple(f"process {rank}" for rank in chosen)
        self.traffic = Traffic()
        self._timeout_s = timeout_s
        self._device = "cuda" if "nccl" in str(dist.get_backend(self._process_group)) else "cpu"
        store: Any = self._process_group.get_group_store()
        # A connection of its own, because others of the process may wait in theirs.
        self.board = StoreBoard(cast(Store, store.clone()), self.rank, self.size, f"exchange/{epoch}")
        self._aborted = False
        #: Calls that torch has not completed.
        self.under_way: set[_TorchWork] = set()
        self._sent = self._heard = torch.empty(0, dtype=torch.uint8)

    def all_reduce(self, buffer: Tensor, tag: str) -> Work:
        moved = ring_bytes(buffer.nbytes, self.size)
        self.traffic.add(tag, sent=moved, received=moved)
        if self.size == 1:
            return Done()
        return self._begin(
            "all_reduce", tag, lambda: _dist.all_reduce(buffer, group=self._process_group, async_op=True)
        )

    def all_gather(
        self, message: memoryview, facts: Sequence[int], tag: str
    ) -> list[tuple[memoryview, tuple[int, ...]]]:
        if self.size == 1:
            return [(message, tuple(facts))]
        head = torch.tensor([message.nbytes, *facts], dtype=torch.int64, device=self._device)
        heads = torch.empty(self.size * len(head), dtype=torch.int64, device=self._device)
        self._gather(heads, head, tag)
        told = cast(list[list[int]], cast(Any, heads.view(self.size, -1)).tolist())
        longest = max(length for length, *_ in told)
        others = self.size - 1
        self.traffic.add(
            tag,
            sent=message.nbytes * others,
            received=sum(length for length, *_ in told) - message.nbytes,
            headers_sent=(head.nbytes + longest - message.nbytes) * others,
            headers_received=sum(
                head.nbytes + longest - told[rank][0] for rank in range(self.size) if rank != self.rank
            ),
        )
        if not longest:
            return [(message, tuple(theirs)) for _, *theirs in told]
        self._make_room(longest)
        _bytes_of(self._sent)[: message.nbytes] = message.cast("B")
        heard = self._heard[: self.size * longest]
        self._gather(heard, self._sent[:longest].to(self._device), tag)
        data = _bytes_of(heard.cpu())
        return [
            (message if rank == self.rank else data[rank * longest : rank * longest + length], tuple(theirs))
            for rank, (length, *theirs) in enumerate(told)
        ]

    def broadcast(self, buffer: Tensor, root: int, tag: str) -> None:
        if self.size == 1:
            return
        source: int = _dist.get_global_rank(self._process_group, root)
        self._begin(
            "broadcast", tag, lambda: _dist.broadcast(buffer, source, group=self._process_group, async_op=True)
        ).wait()
        others = self.size - 1
        self.traffic.add(
            tag,
            sent=buffer.nbytes * others if self.rank == root else 0,
            received=buffer.nbytes if self.rank != root else 0,
        )

    def abort(self) -> None:
        self._aborted = True
        for work in list(self.under_way):
            work.wake()

    def close(self) -> None:
        hanging = any(not work.done for work in list(self.under_way))
        self.abort()
        # With a call that hangs, torch would wait here until its timeout; at the end of the process it does not.
        if self._process_group is not None and dist.is_initialized() and not hanging:
            _dist.destroy_process_group(self._process_group)
        self._process_group = None

    def _gather(self, out: Tensor, own: Tensor, tag: str) -> None:
        self._begin("all_gather", tag, lambda: _all_gather(out, own, group=self._process_group, async_op=True)).wait()

    def _make_room(self, longest: int) -> None:
        if len(self._sent) < longest:
            self._sent = torch.zeros(longest, dtype=torch.uint8)
            self._heard = torch.empty(longest * self.size, dtype=torch.uint8, device=self._device)

    def _begin(self, what: str, tag: str, begin: Any) -> Work:
        call = f"{what}({tag!r})"
        self.refuse_aborted(call)
        try:
            return _TorchWork(self, begin(), call)
        except RuntimeError as error:
            raise self.told(error, call) from error

    def refuse_aborted(self, call: str) -> None:
        if self._aborted:
            raise ExchangeAborted(
                f"{call} of epoch {self.epoch} was aborted; go on with the next group", epoch=self.epoch
            )

    def told(self, error: RuntimeError, call: str) -> Exception:
        """What an error of the backend means."""
        if "imed out" in str(error):
            return ExchangeStalled(
                f"a member did not come to {call} within {self._timeout_s:g} s; look there, or raise timeout_s",
                waited_s=self._timeout_s,
            )
        # gloo knows an address of who is gone, not a rank.
        ranks = (1 - self.rank,) if self.size == 2 else ()
        names = tuple(self.members[rank] for rank in ranks)
        return MemberLost(
            f"{', '.join(names) or f'one of {self.size} members'} was lost in {call} of epoch {self.epoch}; "
            f"the group is of no use any more. torch says: {error}",
            ranks=ranks,
            members=names,
            epoch=self.epoch,
        )


class _TorchWork(Work):
    """Waits beside torch, because an abort cannot wake up who waits inside gloo."""

    def __init__(self, group: TorchGroup, work: Any, call: str) -> None:
        self._group = group
        self._work = work
        self._call = call
        self._awake = threading.Event()
        group.under_way.add(self)
        work.get_future().add_done_callback(self._finish)

    @property
    def done(self) -> bool:
        return self._work.is_completed()

    def wait(self) -> None:
        self._awake.wait()
        if not self.done:
            self._group.refuse_aborted(self._call)
        try:
            self._work.wait()
        except RuntimeError as error:
            raise self._group.told(error, self._call) from error
        if torch.cuda.is_initialized():
            torch.cuda.current_stream().synchronize()

    def wake(self) -> None:
        """End the wait, because the group was aborted."""
        self._awake.set()

    def _finish(self, future: Any) -> None:
        self._group.under_way.discard(self)
        self._awake.set()


def _bytes_of(flat: Tensor) -> memoryview:
    """The memory of a tensor on the CPU."""
    return memoryview(cast(Any, flat.numpy()))
