"""Entry functions of the processes that tests of this folder start."""

from __future__ import annotations

import os
import signal
import sys
import time

import msgspec

from ropewalk.processes.bootstrap import ProcessContext
from ropewalk.transport.address import parse_address
from ropewalk.transport.client import dial
from ropewalk.transport.link import Codec, Link


class Word(msgspec.Struct, tag=1, array_like=True):
    """Anything that the two say."""

    text: str


WORDS = Codec(Word)


def up(context: ProcessContext) -> Link:
    return dial(parse_address(context.owner_address), context.credentials, WORDS, passport=context.passport)


def echo(context: ProcessContext) -> None:
    """Say back what is heard, until the owner is gone."""
    link = up(context)
    while received := link.receive():
        link.send(received.message)


def facts(context: ProcessContext) -> None:
    """Say what this process is like."""
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    facts = {
        "pid": os.getpid(),
        "leads": os.getsid(0) == os.getpid() == os.getpgid(0),
        "stdin": os.read(0, 10).decode(),
        "ignores SIGINT": ignored,
        "threads": os.environ["OMP_NUM_THREADS"],
        "extra": os.environ.get("EXTRA", ""),
        "name": os.environ["ROPEWALK_PROCESS"],
        "folder": os.getcwd(),
        "fds": sorted(int(fd) for fd in os.listdir("/proc/self/fd")),
        "path": sys.path,
        "context": repr(context),
    }
    link = up(context)
    link.send(Word(msgspec.json.encode(facts).decode()))
    link.receive()


def fail(context: ProcessContext) -> None:
    raise LookupError("nothing to do")


def leave(context: ProcessContext) -> None:
    print("bye", end="")
    sys.exit(3)


def speak_late(context: ProcessContext) -> None:
    """Open the link, ignore polite requests to end, and speak when it is told to."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    link = up(context)
    link.receive()
    time.sleep(0.2)
    link.send(Word("late"))


def speak_and_die(context: ProcessContext) -> None:
    """Say much and be killed in the same moment."""
    link = up(context)
    for number in range(1000):
        link.send(Word(str(number)))
    os.kill(os.getpid(), signal.SIGKILL)


def chatter(context: ProcessContext) -> None:
    """Speak without end."""
    link = up(context)
    while True:
        link.send(Word("and"))
        time.sleep(0.001)
