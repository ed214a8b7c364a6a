"""Entry functions of processes that are held to what they asked for."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import msgspec

from ropewalk.processes.bootstrap import ProcessContext
from tests.processes.entries import Word, up

MIB = 1 << 20


def bounds(context: ProcessContext) -> None:
    """Say what this process may use, until the owner is gone."""
    facts = {
        "cpus": sorted(os.sched_getaffinity(0)),
        "memory": resource.getrlimit(resource.RLIMIT_DATA)[0],
        "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }
    link = up(context)
    link.send(Word(msgspec.json.encode(facts).decode()))
    link.receive()


def allocate_too_much(context: ProcessContext) -> None:
    """Ask for more memory than there is for it, in one piece."""
    try:
        bytearray(1024 * MIB)
    except MemoryError:
        up(context).send(Word("MemoryError"))


def start_two_that_allocate(context: ProcessContext) -> None:
    """Use more memory than there is for it, in two children of which each keeps to the limit."""
    code = f"kept = bytearray(150 * {MIB}); kept[::4096] = b'x' * len(kept[::4096]); input()"
    children = [subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) for _ in range(2)]
    link = up(context)  # kept open: a process without its link is killed after two seconds
    link.send(Word(str([child.pid for child in children])))
    children[0].wait()
    link.close()
