"""A worker on the launcher's side: each constant is sent once, before the first task that needs it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from ropewalk.errors import LinkClosed
from ropewalk.pool.constants import Constant
from ropewalk.pool.messages import ConstantMessage, Forget, Setup, StopWorker, Tasks
from ropewalk.pool.remote_worker import RemoteWorker, first_message
from ropewalk.pool.task_content import Content
from ropewalk.pool.task_table import ItemSpan, SpanAssignment, TaskUnit
from ropewalk.transport.blobs import pack


class RecordedLink:
    """A link that keeps the messages; those that are held back precede the next one that is sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, Sequence[Any], Sequence[int]]] = []
        self.held: list[tuple[Any, Sequence[Any], Sequence[int]]] = []
        self.is_closed = False
        self.stream = SimpleNamespace(carries_fds=True)

    def send(self, message: Any, parts: Sequence[Any] = (), fds: Sequence[int] = ()) -> None:
        if self.is_closed:
            raise LinkClosed("the other side has ended")
        self.sent += [*self.held, (message, parts, fds)]
        self.held = []

    def send_if_open(self, message: Any, parts: Sequence[Any] = (), fds: Sequence[int] = ()) -> None:
        with contextlib.suppress(LinkClosed):
            self.send(message, parts, fds)

    def hold(self, message: Any, parts: Sequence[Any] = (), fds: Sequence[int] = ()) -> None:
        self.held.append((message, parts, fds))

    @property
    def kinds(self) -> list[str]:
        return [type(message).__name__ for message, _, _ in self.sent]


def new_worker() -> tuple[RemoteWorker, RecordedLink]:
    link: Any = RecordedLink()
    return RemoteWorker("id", 0, "pool-1.0", "pool-1.0", (1,), blobs=None, link=link), link  # type: ignore[arg-type]


def assigned(constant: Constant, seq: int, **content: Any) -> SpanAssignment:
    unit = TaskUnit(None, 0, 1, constant.id, content=Content(0, 0, [constant], [b"x"], **content))
    return SpanAssignment("id", seq, ItemSpan(unit, 0, 1))


def test_a_constant_is_sent_before_the_first_task_that_needs_it_and_once() -> None:
    worker, link = new_worker()
    first, second = Constant("first", [b"1"]), Constant("second", [b"2"])
    worker.run([assigned(first, 0), assigned(second, 1)])
    worker.run([assigned(first, 2)])
    assert link.kinds == ["ConstantMessage", "ConstantMessage", "Tasks", "Tasks"]
    assert [[unit.code for unit in message.units] for message, _, _ in link.sent[2:]] == [[0, 1], [0]]


def test_a_constant_that_was_forgotten_is_sent_again_under_a_new_number() -> None:
    worker, link = new_worker()
    constant, other = Constant("first", [b"1"]), Constant("other", [b"2"])
    worker.run([assigned(constant, 0)])
    worker.forget([constant, other])
    worker.run([assigned(constant, 1)])
    assert link.kinds == ["ConstantMessage", "Tasks", "Forget", "ConstantMessage", "Tasks"]
    assert link.sent[2][0] == Forget([0]) and link.sent[3][0].number == 1


def test_many_forgotten_constants_do_not_pile_up_at_an_idle_worker() -> None:
    worker, link = new_worker()
    constants = [Constant(f"number {number}", [b"1"]) for number in range(40)]
    worker.run([assigned(constant, seq) for seq, constant in enumerate(constants)])
    for constant in constants:
        worker.forget([constant])
    assert len(link.held) < 40 and "Forget" in link.kinds


def test_a_message_carries_at_most_32_descriptors() -> None:
    worker, link = new_worker()
    constant = Constant("first", [b"1"])
    worker.run([assigned(constant, seq, shared=(1,), fd=100 + seq) for seq in range(40)])
    tasks = [(message, fds) for message, _, fds in link.sent if isinstance(message, Tasks)]
    assert [len(fds) for _, fds in tasks] == [32, 8]
    assert [unit.seq for message, _ in tasks for unit in message.units] == list(range(40))


def test_large_arguments_go_to_another_host_as_their_bytes() -> None:
    # A link to another host carries no descriptors. They were given to it all the same: each task with an array of
    # 512 KiB or more was never sent, and the pool waited for ever.
    worker, link = new_worker()
    link.stream.carries_fds = False
    constant = Constant("first", [b"1"])
    fd = pack([b"pickle", b"array"], "arguments")
    try:
        worker.run([assigned(constant, 0, shared=(6, 5), fd=fd), assigned(constant, 1)])
        os.fstat(fd)  # still open: the task may have to run again
    finally:
        os.close(fd)
    message, parts, fds = link.sent[-1]
    assert [bytes(part) for part in parts] == [b"pickle", b"array", b"x"] and not fds
    assert [(unit.num_parts, unit.shared) for unit in message.units] == [(2, ()), (1, ())]


def test_a_worker_knows_neither_the_initializer_nor_its_arguments_after_the_setup() -> None:
    worker, link = new_worker()
    initializer, arguments = Constant("initializer", [b"1"]), Constant("arguments", [b"2"])
    worker.set_up(first_message(), initializer, arguments)
    assert worker.known == {}
    assert link.kinds == ["BeginWorker", "ConstantMessage", "ConstantMessage", "Setup"]
    given = [message for message, _, _ in link.sent if isinstance(message, ConstantMessage)]
    assert [(message.id, message.writable) for message in given] == [("initializer", False), ("arguments", True)]
    assert link.sent[0][0].identity == (1,) and link.sent[-1][0] == Setup("initializer", "arguments")


def test_messages_to_a_worker_whose_link_is_closed_are_dropped() -> None:
    """The report of its exit, which follows, gives back the tasks that it held."""
    worker, link = new_worker()
    link.is_closed = True
    worker.run([assigned(Constant("first", [b"1"]), 0)])
    worker.stop()
    assert link.sent == []
    worker.link, link.is_closed = None, False
    worker.stop()
    assert link.sent == []
    worker.link = link  # type: ignore[assignment]
    worker.stop()
    assert link.sent[-1][0] == StopWorker()
