"""The fork server: a small, warm, single-threaded process that forks the others.

A fork of a process that has imported what workers need takes about a millisecond;
a fresh interpreter takes a hundred. The fork server has one thread, so forking is
safe, and it holds nothing but imports.

It forks twice, and the intermediate process ends at once: so the worker becomes a child of the agent (which is a
subreaper), the agent sees its death and its exit status directly, and the loss of the fork server affects no running
worker. The standard library's fork server cannot do that: its children are its own.

    agent ──ForkRequest + descriptors──▶ fork server ──fork──▶ ○ ──fork──▶ worker (child of the agent)
      ◀──────────── ForkReply(pid) ─────────────────────────── ┘ exits
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import signal
import sys
import time
import traceback

import msgspec

from ropewalk.engines.resources import blas_threads_environment
from ropewalk.errors import LinkClosed
from ropewalk.processes import bootstrap
from ropewalk.processes.messages import IF_THERE, ForkReply, ForkRequest
from ropewalk.surroundings import as_sent
from ropewalk.transport import kernel
from ropewalk.transport.channel import Channel
from ropewalk.transport.named_memory import keep_memory_of_others

_USUAL_ENTRIES = ("ropewalk.pool.worker", "ropewalk.compat.process_main")
"""The modules in which most processes begin; each imports hardly more than the other."""
_REQUESTS = msgspec.msgpack.Decoder(ForkRequest)
_NEVER = (1 << 31) - 1
"""A threshold of the garbage collector that no import reaches. What is imported stays, so the collector looks through
it in vain: for torch and torch._dynamo that takes 0.57 of 3.0 s of CPU time, and 0.27 s more to find what may be freed
before the rest is frozen, which are 9,000 of 318,000 objects and less than a megabyte."""
_AGAIN_S = 0.005
"""Pause before a reply that the kernel did not take is sent again, in seconds."""


def serve(channel: Channel, preload: tuple[str, ...], path: tuple[str, ...]) -> None:
    """Import the preloaded modules, report that, then fork until the agent closes the channel.

    Args:
        channel: channel to the agent.
        preload: modules that all processes share from the start.
        path: the import path of the owner that asked for them.
    """
    kernel.die_with_parent()
    bootstrap.inherited = dict(os.environ)
    os.environ["ROPEWALK_PROCESS"] = "fork server"
    # Modules that are imported here must not start threads.
    os.environ.update(blas_threads_environment(1, os.environ))
    keep_memory_of_others()
    kernel.name_thread("rw-forkserver")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    atexit._clear()  # type: ignore[attr-defined]  # what the agent registered is not ours to run
    thresholds = gc.get_threshold()
    gc.set_threshold(_NEVER)
    problem = _import_all(preload, path)
    channel.send(msgspec.msgpack.encode(ForkReply("", 0 if problem else os.getpid(), problem)))
    if problem:
        return
    entries: set[str] = {*_USUAL_ENTRIES}
    for entry in _USUAL_ENTRIES:  # while nobody waits for them
        _import_entry(entry)
    gc.freeze()
    if gc.get_threshold()[0] == _NEVER:  # else a preloaded module has chosen
        gc.set_threshold(*thresholds)
    while True:
        data, fds = channel.receive()
        if not data:
            return
        request = _REQUESTS.decode(data)
        entry = request.start.entry.partition(":")[0]
        if entry not in entries:
            entries.add(entry)
            _import_entry(entry)
            _share_memory()
        _fork_twice(channel, request, fds)
        for fd in fds:
            os.close(fd)


def _import_entry(entry: str) -> None:
    """Import what processes begin in: once, here, instead of in every child."""
    with contextlib.suppress(Exception, SystemExit):  # the process itself meets the same error, and reports it
        importlib.import_module(entry)


def _share_memory() -> None:
    """Prevent the collectors of children from touching, and so copying, pages that all children share.

    Only what was imported since the last time is looked through.
    """
    gc.collect()
    gc.freeze()


def _fork_twice(channel: Channel, request: ForkRequest, fds: list[int]) -> None:
    try:
        between = os.fork()
    except OSError as error:
        _reply(channel, ForkReply(request.start.id, 0, f"fork failed: {error}"))
        return
    if between:
        os.waitpid(between, 0)
        return
    try:
        worker = os.fork()
    except OSError as error:
        _reply(channel, ForkReply(request.start.id, 0, f"fork failed: {error}"))
        os._exit(1)
    if worker:
        _reply(channel, ForkReply(request.start.id, worker))
        os._exit(0)
    channel.close()
    bootstrap.run(request, fds)


def _reply(channel: Channel, reply: ForkReply) -> None:
    message = msgspec.msgpack.encode(reply)
    with contextlib.suppress(LinkClosed):  # the agent is gone, and so will this process be in a moment
        while True:
            try:
                channel.send(message)
                return
            except BlockingIOError:  # the kernel has no memory at the moment; without the reply the fork is lost
                time.sleep(_AGAIN_S)


def _import_all(modules: tuple[str, ...], path: tuple[str, ...]) -> str:
    """Import modules; returns what is wrong, or ""."""
    own = sys.path[:]
    sys.path[:] = map(as_sent, path)
    try:
        return _import_each(modules)
    finally:
        sys.path[:] = own  # for those modules of ours that the first process of each kind needs


def _import_each(modules: tuple[str, ...]) -> str:
    for name in modules:
        module = name.removesuffix(IF_THERE)
        try:
            importlib.import_module(module)
        except BaseException as error:  # any exception of a user's module is reported as the reason
            if isinstance(error, ImportError) and name != module:
                continue
            return f"preload={module!r} cannot be imported:\n{traceback.format_exc()}"
        num_threads = len(os.listdir("/proc/self/task"))
        if num_threads > 1:
            return (
                f"preload={module!r} started {num_threads - 1} thread(s) when it was imported; a process with threads "
                "cannot be forked safely. Leave it out of preload: each worker imports it by itself then"
            )
    return ""
