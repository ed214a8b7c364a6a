"""`TorchGroup`: a group over torch.distributed, on gloo or NCCL.

    all_gather of messages of any length      1. lengths and facts, int64, of fixed size
                                              2. one buffer of bytes, padded to the longest; none if all are empty

torch's gloo has no all-gather of uneven pieces, and its sparse all-reduce takes tens of times longer. The group has a
backend of its own, so that its collectives, begun by the communication thread, do not mix with others of the process.
The backend is made directly, because torch's `new_group` needs every process of the world to take part, or reuses a
name. gloo groups cannot shrink and do not encrypt: between hosts use them on trusted networks only, and `LinkGroup` on
others.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from ropewalk.errors import ExchangeAborted, ExchangeInvalid, ExchangeStalled, MemberLost
from ropewalk.exchange.groups.board import Board, Store, StoreBoard
from ropewalk.exchange.groups.group import CompletedWork, Group, Work
from ropewalk.exchange.traffic import MemberTraffic, ring_bytes

# Torch's own types tell little here.
_dist: Any = dist

_CONNECTION = re.compile(r"\[(?!enforce fail)[^\]]*gloo/transport/|connection", re.IGNORECASE)
"""What gloo's errors about a connection contain, and those about an argument do not: both are plain RuntimeErrors."""

_made: Counter[tuple[int, ...]] = Counter()
"""Number of groups made in this process, by ranks: it is the same on every member, and so names the next group."""

_hanging: list[Any] = []
"""Backends in which a call hangs for ever. Destroying one would wait for that call."""


class TorchGroup(Group):
    """A group of processes that torch.distributed has connected.

    Every member makes it, and members of several groups make them in the same order.

    Args:
        process_group: the process group whose members these are; None for all processes.
        ranks: a subset of the members (a process set), by their ranks in the whole world; only they make the group.
        timeout_s: seconds to wait for a member before a collective fails.
        epoch: epoch of the group.
        device: device of the tensors, "cpu" or "cuda"; None takes the one that the process group's backend is for.

    Raises:
        ExchangeInvalid: torch.distributed is not initialised, this process is not one of `ranks`, or the backend is
            neither gloo nor NCCL.
        ExchangeStalled: a member does not make the group within `timeout_s`.
        MemberLost: a member could not connect, or died meanwhile.
    """

    def __init__(
        self,
        process_group: dist.ProcessGroup | None = None,
        *,
        ranks: Sequence[int] | None = None,
        timeout_s: float = 300.0,
        epoch: int = 0,
        device: str | None = None,
    ) -> None:
        if not dist.is_initialized():
            raise ExchangeInvalid("torch.distributed is not initialised; call init_process_group first")
        everyone: list[int] = _dist.get_process_group_ranks(process_group or dist.group.WORLD)
        chosen = everyone if ranks is None else sorted(ranks)
        if dist.get_rank() not in chosen:
            raise ExchangeInvalid(f"rank {dist.get_rank()} is not one of {chosen}; only members make the group")
        self.rank: int = chosen.index(dist.get_rank())
        self.size: int = len(chosen)
        self.epoch = epoch
        self.members: tuple[str, ...] = tuple(f"process {rank}" for rank in chosen)
        self.traffic: MemberTraffic = MemberTraffic()
        self._timeout_s = timeout_s
        world = tuple(chosen)
        prefix = f"ropewalk/{'-'.join(map(str, world))}/{_made[world]}"
        _made[world] += 1
        shared: Any = cast(Any, dist.group.WORLD).get_group_store()
        # Separate connections, because other threads of the process may wait in the existing ones.
        self.board: Board | None = StoreBoard(cast(Store, shared.clone()), self.rank, self.size, prefix)
        self._backend: Any = None
        self._device = "cpu"
        self._aborted = False
        self.under_way: set[_TorchWork] = set()
        """Operations that torch has not completed."""
        if self.size > 1:
            kind = _kind_of(process_group, device)
            self._device = "cuda" if kind == "nccl" else "cpu"
            store = _dist.PrefixStore(prefix, shared.clone())
            self._backend = _make_backend(kind, store, self.rank, self.size, timedelta(seconds=timeout_s))
            if kind == "gloo":  # a member that closed its group at once would do so while others still connect
                self._begin("barrier", "begin", lambda: self._backend.barrier(_dist.BarrierOptions())).wait()
        self._sent = self._heard = torch.empty(0, dtype=torch.uint8)

    def all_reduce(self, buffer: Tensor, tag: str) -> Work:
        moved = ring_bytes(buffer.nbytes, self.size)
        self.traffic.add(tag, sent=moved, received=moved)
        if self.size == 1:
            return CompletedWork()
        return self._begin("all_reduce", tag, lambda: self._backend.allreduce([buffer]))

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
        options = _dist.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        self._begin("broadcast", tag, lambda: self._backend.broadcast([buffer], options)).wait()
        self.count_broadcast(buffer, root, tag)

    def abort(self) -> None:
        self._aborted = True
        for work in list(self.under_way):
            work.wake()

    def close(self) -> None:
        if any(not work.done for work in list(self.under_way)):
            _hanging.append(self._backend)
        self.abort()
        self._backend = None

    def _gather(self, out: Tensor, own: Tensor, tag: str) -> None:
        self._begin("all_gather", tag, lambda: self._backend._allgather_base(out, own)).wait()

    def _make_room(self, longest: int) -> None:
        if len(self._sent) < longest:
            self._sent = torch.zeros(longest, dtype=torch.uint8)
            self._heard = torch.empty(longest * self.size, dtype=torch.uint8, device=self._device)

    def _begin(self, what: str, tag: str, begin: Any) -> Work:
        call = f"{what}({tag!r})"
        self.refuse_aborted(call)
        try:
            work = _TorchWork(self, begin(), call)
        except RuntimeError as error:
            raise self.told(error, call) from error
        if self._aborted:
            work.wake()  # it was not registered yet when `abort` went through them
        return work

    def refuse_aborted(self, call: str) -> None:
        if self._aborted:
            raise ExchangeAborted(
                f"{call} of epoch {self.epoch} was aborted; go on with the next group", epoch=self.epoch
            )

    def told(self, error: RuntimeError, call: str) -> Exception:
        """Translate an error of the backend."""
        if "imed out" in str(error):
            return ExchangeStalled(
                f"a member did not come to {call} within {self._timeout_s:g} s; look there, or raise timeout_s",
                waited_s=self._timeout_s,
            )
        if not isinstance(error, _dist.DistError) and not _CONNECTION.search(str(error)):
            return ExchangeInvalid(
                f"{call} of epoch {self.epoch} cannot be done; torch says: {error}. It is about the tensor or an "
                f"argument, such as a dtype or device that the backend does not add up; no member is lost"
            )
        # gloo reports the address of the lost member, not its rank.
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
    """Waits outside of torch, because an abort cannot wake up a thread that waits inside gloo."""

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


def _kind_of(process_group: dist.ProcessGroup | None, device: str | None) -> str:
    """Return the backend for a device, "gloo" or "nccl"; a process group may have one for each."""
    config: str = _dist.get_backend_config(process_group)
    by_device = dict(part.split(":") for part in config.split(",") if ":" in part)
    kinds = set(by_device.values()) or {config}
    wanted = {by_device[device]} if device in by_device else kinds
    for kind in ("gloo", "nccl"):
        if kind in wanted:
            return kind
    raise ExchangeInvalid(f"backend {config!r} is neither gloo nor NCCL; an exchange runs on these, or on a LinkGroup")


def _make_backend(kind: str, store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    if kind == "gloo":
        return _dist.ProcessGroupGloo(store, rank, size, timeout)
    options = _dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return _dist.ProcessGroupNCCL(store, rank, size, options)


def _bytes_of(flat: Tensor) -> memoryview:
    """Return the memory of a tensor on the CPU."""
    return memoryview(cast(Any, flat.numpy()))
