"""Memory that the processes of a host share: blobs that were sent to it once, and blobs that they make together, once.

    launcher ─ PutBlob ─▶ agent      each process ─ GetBlob ─▶ agent ─ BlobHere ─▶ maps the file
                                                                     ─ BlobAbsent ─▶ fails: the host cannot hold it

    first process ─ GetMade ─▶ agent ─ Make ────▶ fills a memory file ─ PutBlob ─▶ agent
    the others    ─ GetMade ─▶ agent ─ … waits until it is there, or its maker dead … ─ BlobHere ─▶ map the same file

In the launcher, and in processes that no agent has started, it is memory of the process.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
import weakref
from collections.abc import Callable
from typing import NoReturn

from ropewalk.errors import LinkClosed
from ropewalk.processes import bootstrap
from ropewalk.processes.bootstrap import ProcessContext
from ropewalk.processes.messages import CONTROL, BlobAbsent, BlobHere, GetBlob, GetMade, Make, PutBlob
from ropewalk.transport.address import parse_address
from ropewalk.transport.blobs import BlobRef, open_parts, write_in_place
from ropewalk.transport.client import PATIENCE_S, dial
from ropewalk.transport.link import Link, Received

Fill = Callable[[memoryview], object]
"""Writes the content into memory that is all zeros; keeps no view of it."""

_mapped: weakref.WeakValueDictionary[str, mmap.mmap] = weakref.WeakValueDictionary()
"""The mappings of this process, by name, while they are used."""
_links: weakref.WeakSet[Link] = weakref.WeakSet()
"""One link to the agent for each mapping: the agent keeps the memory as long as they are up."""
_asking = threading.Lock()


def made_once(name: str, size_bytes: int, fill: Fill) -> memoryview:
    """Return read-only memory with the content that `fill` writes.

    All processes of this host that ask for it share it.

    Args:
        name: name of the recipe: everything that determines the content is part of it.
        size_bytes: size of the memory, at least 1.
        fill: called in the first process that asks.

    Returns:
        A view. The memory is freed a while after the last process of the host has dropped its view.

    Raises:
        Exception: whatever `fill` raised; the next process that asks tries again.
    """
    if size_bytes < 1:
        raise ValueError(f"size_bytes must be at least 1, not {size_bytes}")
    with _asking:
        mapping = _mapped.get(name)
        if mapping is None:
            here = bootstrap.current
            mapping = _of_host(here, name, size_bytes, fill) if here else _of_process(size_bytes, fill)
            _mapped[name] = mapping
        return memoryview(mapping)[:size_bytes].toreadonly()


def parts_of_host(context: ProcessContext, ref: BlobRef) -> list[memoryview]:
    """Return the parts of a blob that the launcher sends to this host; waits until it is there.

    They are this process's own: all processes share the memory that none of them writes to.

    Raises:
        TransportError: the agent of this host cannot be reached.
    """
    link = dial(parse_address(context.agent_address), context.credentials, CONTROL, timeout_s=PATIENCE_S)
    try:
        return fetch_blob(link, ref.id, context.name, writable=True)
    finally:
        link.close()


def fetch_blob(link: Link, id: str, process: str, *, writable: bool) -> list[memoryview]:
    """Return the parts of a blob of this host, over a link to its agent; waits until it is there.

    Args:
        link: link to the agent.
        id: id of the blob.
        process: the name of this process.
        writable: whether this process may write to the memory, without others seeing it.

    Raises:
        RuntimeError: the host cannot hold it; says why.
    """
    received: Received | None = None
    with contextlib.suppress(LinkClosed):
        link.send(GetBlob(id))
        received = link.receive()
    if received is None:
        end_with_agent(process)
    if isinstance(received.message, BlobAbsent):
        raise RuntimeError(f"{process} needs a value that was sent to its host, and {received.message.problem}")
    if not isinstance(received.message, BlobHere):
        raise RuntimeError(f"the agent did not hand over the blob {id[:12]}")
    return open_parts(received.fds.take(), received.message.ref.lengths, writable=writable)


def _of_process(size_bytes: int, fill: Fill) -> mmap.mmap:
    mapping = mmap.mmap(-1, size_bytes)
    with memoryview(mapping) as view:
        fill(view)
    return mapping


def _of_host(here: ProcessContext, name: str, size_bytes: int, fill: Fill) -> mmap.mmap:
    link = dial(parse_address(here.agent_address), here.credentials, CONTROL, timeout_s=PATIENCE_S)
    try:
        fd = _ask(link, name, size_bytes, fill, here.name)
        (view,) = open_parts(fd, (size_bytes,), writable=False)
    except BaseException:
        link.close()  # the agent has another process make it
        raise
    mapping = view.obj
    assert isinstance(mapping, mmap.mmap)
    weakref.finalize(mapping, link.close).atexit = False
    _links.add(link)
    return mapping


def _ask(link: Link, name: str, size_bytes: int, fill: Fill, process: str) -> int:
    link.send(GetMade(name))
    received = link.receive()
    message = received.message if received else end_with_agent(process)
    match message:
        case BlobHere():
            assert received
            return received.fds.take()
        case Make():
            fd = write_in_place(size_bytes, fill, "ropewalk-made")
            link.send(PutBlob(BlobRef(name, (size_bytes,))), fds=[fd])
            return fd
        case _:
            raise RuntimeError(f"the agent answered {name!r} with {message!r}")


def end_with_agent(process: str) -> NoReturn:
    """Wait to be ended by the kernel with the agent, which is gone.

    An error would become the result of tasks that are about to run again elsewhere.
    """
    raise SystemExit(f"the agent of {process} is gone")


def _forget_links() -> None:
    """Reset in a forked child: the mappings are its own as well, the links are its parent's."""
    global _asking
    _asking = threading.Lock()
    for link in list(_links):
        link.close_copy()
    _links.clear()


os.register_at_fork(after_in_child=_forget_links)


__all__ = ["Fill", "end_with_agent", "fetch_blob", "made_once", "parts_of_host"]
