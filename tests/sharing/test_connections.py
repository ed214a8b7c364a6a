"""Pipes between real processes: order, sizes, closed ends, deaths, handles that are passed on, and `wait`."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import multiprocessing.connection
import os
import pickle
import select
import signal
import socket
import sys
import threading
import time
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from ropewalk.pool.pool import Pool
from ropewalk.sharing.connections import Connection, Pipe
from ropewalk.sharing.queues import Queue
from tests.patience import PATIENCE_S, wait_until
from tests.scenarios.launchers import wait_until_asleep
from tests.sharing.listeners import listener_pid

wait: Any = multiprocessing.connection.wait  # its stubs know no connections but its own


def echo(connection: Connection) -> str:
    """Send back whatever comes, until nobody holds the other end."""
    while True:
        try:
            connection.send(connection.recv())
        except EOFError as error:
            return str(error)


def echo_bytes(connection: Connection, num: int) -> None:
    for _ in range(num):
        connection.send_bytes(connection.recv_bytes())


def say_pid_and_wait(connection: Connection, in_what: str) -> object:
    connection.send(os.getpid())
    if in_what == "send":
        while True:
            connection.send(bytes(1 << 20))
    return connection.recv() if in_what == "recv" else time.sleep(60)


# Messages


def test_messages_arrive_in_order_in_both_directions(session: rw.Session, pool: Pool) -> None:
    ours, theirs = Pipe(session=session)
    echoing = pool.apply_async(echo, (theirs,))
    for number in range(200):
        ours.send((number, "x" * number))
    assert [ours.recv() for _ in range(200)] == [(number, "x" * number) for number in range(200)]
    del theirs
    ours.close()
    assert "the launcher" in echoing.get(120)


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 100_000, 600_000, 64 << 20])
def test_bytes_and_arrays_of_any_size(session: rw.Session, pool: Pool, size: int) -> None:
    ours, theirs = Pipe(session=session)
    echoing = pool.apply_async(echo_bytes, (theirs, 2))
    data = os.urandom(1000) * (size // 1000) + bytes(size % 1000)
    ours.send_bytes(data)
    assert ours.recv_bytes() == data
    ours.send_bytes(memoryview(data)[size // 2 :])
    assert ours.recv_bytes() == data[size // 2 :]
    echoing.get(120)
    echoing = pool.apply_async(echo, (theirs,))
    ours.send({"array": np.frombuffer(data, np.uint8).copy()})
    back = ours.recv()["array"]
    assert back.tobytes() == data
    back += 1  # it is the receiver's own
    del theirs
    ours.close()
    echoing.get(120)


def test_a_one_way_pipe_goes_one_way(session: rw.Session) -> None:
    reader, writer = Pipe(duplex=False, session=session)
    writer.send(1)
    assert (reader.recv(), reader.readable, reader.writable, writer.readable, writer.writable) == (
        1,
        True,
        False,
        False,
        True,
    )
    with pytest.raises(OSError, match="connection is read-only"):
        reader.send(1)
    for call in (writer.recv, writer.poll, writer.recv_bytes, lambda: writer.recv_bytes_into(bytearray(1))):
        with pytest.raises(OSError, match="connection is write-only"):
            call()
    again = pickle.loads(pickle.dumps(writer))
    assert (again.readable, again.writable) == (False, True)


def test_bytes_and_objects_share_one_stream(session: rw.Session) -> None:
    one, other = Pipe(session=session)
    one.send_bytes(pickle.dumps({"a": 1}))
    assert other.recv() == {"a": 1}
    objects: list[Any] = [[1, 2, 3], np.arange(10_000)]
    for obj in objects:
        one.send(obj)
        assert np.array_equal(pickle.loads(other.recv_bytes()), obj)
    one.send_bytes(b"not a pickle")
    with pytest.raises(pickle.UnpicklingError):
        other.recv()
    one.send("and so on")
    assert other.recv() == "and so on"


def test_what_cannot_be_pickled_is_not_sent(session: rw.Session) -> None:
    one, other = Pipe(session=session)
    with pytest.raises(rw.NotPicklable) as caught:
        one.send([1, threading.Lock()])
    assert caught.value.path.endswith("[1]")
    assert not other.poll()


CALLS: list[Callable[[Any, Any], object]] = [
    lambda one, other: one.send_bytes(b"abc", -1),
    lambda one, other: one.send_bytes(b"abc", 4),
    lambda one, other: one.send_bytes(b"abc", 1, -1),
    lambda one, other: one.send_bytes(b"abc", 1, 3),
    lambda one, other: (one.send_bytes(b"abc", 3), other.recv_bytes()),
    lambda one, other: (one.send_bytes(b"abcdef", 1, 3), other.recv_bytes()),
    lambda one, other: (one.send_bytes(array("i", [1, 2, 3]), 4, 4), other.recv_bytes()),
    lambda one, other: (one.send_bytes(bytearray(b"abc")), other.recv_bytes(3)),
    lambda one, other: one.send_bytes("text"),
    lambda one, other: other.recv_bytes(-1),
    lambda one, other: (one.send_bytes(b"abc"), other.recv_bytes(2)),
    lambda one, other: other.recv_bytes_into(bytearray(3), -1),
    lambda one, other: other.recv_bytes_into(bytearray(3), 4),
    lambda one, other: (one.send_bytes(b"abc"), other.recv_bytes_into(b"123")),
    lambda one, other: (one.send_bytes(b"abc"), other.recv_bytes_into(bytearray(2))),
    lambda one, other: (one.send_bytes(b"abc"), other.recv_bytes_into(bytearray(4), 2)),
    lambda one, other: (one.send_bytes(b"abc"), other.recv_bytes_into(bytearray(4), 1)),
    lambda one, other: (one.send_bytes(b""), other.recv_bytes_into(bytearray())),
    lambda one, other: (one.close(), one.send(1)),
    lambda one, other: (one.close(), one.recv()),
    lambda one, other: (one.close(), one.poll()),
    lambda one, other: (one.close(), one.fileno()),
    lambda one, other: (one.close(), one.__enter__() is one),
    lambda one, other: (one.close(), pickle.dumps(one) if isinstance(one, Connection) else one.fileno()),
    lambda one, other: (one.close(), one.close(), one.closed),
    lambda one, other: (one.send(1), one.close(), other.recv(), other.poll(), other.recv()),
    lambda one, other: (one.close(), other.send(1)),
    lambda one, other: (one.poll(-1), one.poll(0.01), other.poll(0)),
]


def outcome_of(call: Callable[[Any, Any], object], other: Any, one: Any) -> object:
    try:
        result = call(one, other)
    except Exception as error:
        result = type(error), error.args if isinstance(error, multiprocessing.BufferTooShort) else ()
    states = one.closed, other.closed, not other.closed and other.readable
    one.close()
    other.close()
    return result, states


@pytest.mark.parametrize("duplex", [True, False])
def test_errors_are_those_of_multiprocessing(session: rw.Session, duplex: bool) -> None:
    ours = [outcome_of(call, *Pipe(duplex, session=session)) for call in CALLS]
    theirs = [outcome_of(call, *multiprocessing.Pipe(duplex)) for call in CALLS]
    assert ours == theirs


def test_after_a_message_that_was_too_long_nothing_is_received(session: rw.Session) -> None:
    one, other = Pipe(session=session)
    one.send_bytes(b"12345")
    with pytest.raises(OSError, match="5 bytes, maxlength is 4"):
        other.recv_bytes(4)
    with pytest.raises(OSError, match="write-only"):
        other.recv_bytes()
    other.send("still")
    assert one.recv() == "still"


def test_bytes_are_received_into_buffers(session: rw.Session) -> None:
    one, other = Pipe(session=session)
    numbers = array("i", [0] * 4)
    one.send_bytes(array("i", [7, 8]))
    assert other.recv_bytes_into(numbers, 4) == 8
    assert list(numbers) == [0, 7, 8, 0]
    matrix = np.zeros(1 << 20)
    one.send_bytes(np.ones(1 << 20))
    assert other.recv_bytes_into(matrix) == matrix.nbytes
    assert matrix.all()


def test_poll_waits_as_long_as_it_is_told(session: rw.Session, pool: Pool) -> None:
    ours, theirs = Pipe(session=session)
    began = time.monotonic()
    assert ours.poll(0.2) is False
    assert time.monotonic() - began >= 0.2
    pool.apply_async(echo, (theirs,))
    ours.send(1)
    assert ours.poll(None) is True
    assert ours.poll() is True
    assert ours.recv() == 1
    assert ours.poll() is False
    with ours:
        pass
    assert ours.closed


def test_a_sender_waits_while_there_is_no_room(session: rw.Session) -> None:
    one, other = Pipe(session=session)
    sent: list[int] = []
    message = bytes(1 << 20)

    def send() -> None:
        for number in range(40):
            one.send(message)
            sent.append(number)

    thread = threading.Thread(target=send)
    thread.start()
    wait_until(lambda: len(sent) == 15)  # and not 16, as each is a little more than its bytes
    thread.join(0.2)
    assert len(sent) == 15
    for _ in range(40):
        assert other.recv() == message
    thread.join(120)
    assert len(sent) == 40


def answer_some(connection: Connection, num: int) -> int:
    for _ in range(num):
        connection.send((os.getpid(), connection.recv()))
    return os.getpid()


def test_processes_that_hold_one_end_get_whole_messages(session: rw.Session, pool: Pool) -> None:
    ours, theirs = Pipe(session=session)
    answering = [pool.apply_async(answer_some, (theirs, 40)) for _ in range(3)]
    messages = [bytes([number]) * (1, 1_000, 60_000, 100_000, 1 << 20)[number % 5] for number in range(120)]
    sending = threading.Thread(target=lambda: [ours.send(message) for message in messages])
    sending.start()
    answers = [ours.recv() for _ in messages]
    sending.join()
    assert {pid for pid, _ in answers} == {one.get(120) for one in answering}
    assert sorted(message for _, message in answers) == sorted(messages)


def test_an_object_may_have_any_number_of_arrays(session: rw.Session) -> None:
    one, other = Pipe(session=session)
    arrays = [np.full(1_000, number) for number in range(6_000)]
    one.send(arrays)
    received = other.recv()
    assert all(np.array_equal(mine, its) for mine, its in zip(arrays, received, strict=True))
    received[-1][0] = 0  # it is the receiver's own


# Ends that are closed, deaths


def test_what_is_left_is_read_before_the_end(session: rw.Session) -> None:
    one, other = Pipe(session=session)
    one.send(1)
    one.send(2)
    one.close()
    one.close()
    assert (other.recv(), other.poll(), other.recv(), other.poll()) == (1, True, 2, True)
    for _ in range(2):
        with pytest.raises(EOFError, match=rf"last held by the launcher \(pid {os.getpid()} on"):
            other.recv()
    with pytest.raises(BrokenPipeError, match=rf"last held by the launcher \(pid {os.getpid()} on"):
        other.send(1)


def test_a_closed_end_is_heard_of_when_close_returns(session: rw.Session) -> None:
    for _ in range(50):
        one, other = Pipe(session=session)
        one.send(1)
        other.send(2)  # and is never read
        assert other.recv() == 1
        one.close()
        with pytest.raises(BrokenPipeError, match="last held by the launcher"):
            other.send(3)
        assert other.poll()
        with pytest.raises(EOFError, match="last held by the launcher"):
            other.recv()
        other.close()


def test_an_end_is_closed_with_its_last_handle(session: rw.Session) -> None:
    one, other = Pipe(session=session)
    again = pickle.loads(pickle.dumps(one))
    one.close()
    other.send(1)
    assert again.recv() == 1
    assert not other.poll(0.1)
    del again
    gc.collect()
    assert other.poll(120)
    with pytest.raises(EOFError):
        other.recv()


@pytest.mark.parametrize("doing", ["recv", "send", "sleep"])
def test_the_death_of_who_holds_the_other_end_is_heard_and_names_it(
    session: rw.Session, pool: Pool, doing: str
) -> None:
    ours, theirs = Pipe(session=session)
    pool.apply_async(say_pid_and_wait, (theirs, doing))
    del theirs
    pid = ours.recv()
    if doing == "send":
        assert ours.poll(120)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(EOFError, match=rf"last held by pool-\S+ \(pid {pid} on .*\), which is gone"):
        repeat(ours.recv)
    with pytest.raises(BrokenPipeError, match=rf"last held by pool-\S+ \(pid {pid} on .*\), which is gone"):
        ours.send(1)


def test_a_send_that_waits_ends_when_its_reader_dies(session: rw.Session, pool: Pool) -> None:
    ours, theirs = Pipe(session=session)
    pool.apply_async(say_pid_and_wait, (theirs, "sleep"))
    del theirs
    pid = ours.recv()
    killer = threading.Timer(0.3, os.kill, (pid, signal.SIGKILL))
    killer.start()
    with pytest.raises(BrokenPipeError, match=f"pid {pid}"):
        repeat(lambda: ours.send(bytes(4 << 20)))
    killer.join()


def stop_in_recv(connection: Connection) -> None:
    """Be there for no message that comes, as a process on a host that is overwhelmed."""
    connection.send(os.getpid())

    def stop() -> None:
        wait_until(lambda: is_in("Connection.recv"))
        wait_until_asleep(os.getpid())
        os.kill(os.getpid(), signal.SIGSTOP)

    threading.Thread(target=stop).start()
    connection.recv()


def test_a_message_on_its_way_to_a_process_that_dies_goes_to_the_next_reader(session: rw.Session, pool: Pool) -> None:
    ours, theirs = Pipe(session=session)
    pool.apply_async(stop_in_recv, (theirs,))
    pid = ours.recv()
    wait_until(lambda: is_stopped(pid))
    for number in range(3):
        ours.send(number)
    received: list[int] = [theirs.recv() for _ in range(2)]  # who is stopped takes nothing
    os.kill(pid, signal.SIGKILL)
    received.append(theirs.recv())
    assert received == [0, 1, 2]


def repeat(call: Callable[[], object]) -> None:
    while True:
        call()


def is_in(function: str) -> bool:
    """Whether the main thread runs this function."""
    frame = sys._current_frames()[threading.main_thread().ident or 0]
    while frame:
        if frame.f_code.co_qualname == function:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def is_stopped(pid: int) -> bool:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "T"


def test_ctrl_c_in_recv_loses_no_message(session: rw.Session) -> None:
    one, other = Pipe(session=session)
    interrupter = threading.Thread(
        target=lambda: (wait_until(lambda: is_in("Connection.recv")), os.kill(os.getpid(), signal.SIGINT))
    )
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        other.recv()
    interrupter.join()
    one.send("after")
    assert other.poll(120)
    assert other.recv() == "after"


def test_a_recv_that_waits_in_one_thread_hears_that_another_closed_the_end(session: rw.Session) -> None:
    one, _other = Pipe(session=session)
    errors: list[BaseException] = []

    def receive() -> None:
        try:
            one.recv()
        except OSError as error:
            errors.append(error)

    thread = threading.Thread(target=receive)
    thread.start()
    thread.join(0.2)
    one.close()
    thread.join(120)
    assert "handle is closed" in str(errors)


# Handles that are passed on


def pass_on(connection: Connection, queue: Queue) -> None:
    connection.send("first")
    queue.put(connection)
    connection.close()


def take_over(queue: Queue) -> str:
    connection = queue.get()
    connection.send("second")
    return connection.recv()


def test_a_handle_is_passed_on_by_a_third_process(session: rw.Session, pool: Pool) -> None:
    ours, theirs = Pipe(session=session)
    queue = Queue(session=session)
    pool.apply(pass_on, (theirs, queue))
    del theirs  # nobody has a handle now: it is in the queue
    gc.collect()
    assert ours.recv() == "first"
    taking = pool.apply_async(take_over, (queue,))
    assert ours.recv() == "second"
    ours.send("third")
    assert taking.get(120) == "third"
    with pytest.raises(EOFError, match=r"last held by .*pool-"):
        ours.recv()


def test_a_connection_travels_through_a_connection(session: rw.Session, pool: Pool) -> None:
    ours, theirs = Pipe(session=session)
    echoing = pool.apply_async(echo, (theirs,))
    inner, far = Pipe(session=session)
    ours.send({"connection": far})
    del far
    back = ours.recv()["connection"]
    back.send("through")
    assert inner.recv() == "through"
    del theirs
    ours.close()
    echoing.get(120)


def use_in_a_forked_child(connection: Connection) -> int:
    connection.send("parent")
    pid = os.fork()
    if pid == 0:
        try:
            connection.send(("child", connection.recv()))
            connection.close()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    connection.send("parent again")
    return pid


def test_a_forked_child_uses_the_connection_of_its_parent(session: rw.Session, pool: Pool) -> None:
    ours, theirs = Pipe(session=session)
    using = pool.apply_async(use_in_a_forked_child, (theirs,))
    ours.send("hello")
    assert [ours.recv() for _ in range(3)] == ["parent", ("child", "hello"), "parent again"]
    using.get(120)


# Descriptors


def test_wait_tells_which_of_many_connections_are_ready(session: rw.Session, pool: Pool) -> None:
    pipes = [Pipe(session=session) for _ in range(100)]
    readers = [reader for reader, _ in pipes]
    assert wait(readers, 0) == []
    waiting = {index: readers[index] for index in range(0, 100, 7)}
    for index in waiting:
        pipes[index][1].send(index)
    assert set(wait(readers, 0)) == set(waiting.values())
    for index, reader in waiting.items():
        assert reader.recv() == index
    assert wait(readers, 0.05) == []
    pool.map_async(echo, [writer for _, writer in pipes[:3]], chunksize=1)
    for reader in readers[:3]:
        reader.send("back")
    left = set(readers[:3])
    while left:
        for reader in wait(readers, PATIENCE_S):
            assert reader.recv() == "back"
            left.remove(reader)


def test_wait_takes_connections_sockets_and_those_of_multiprocessing_together(session: rw.Session) -> None:
    one, other = Pipe(session=session)
    theirs, theirs_too = multiprocessing.Pipe()
    near, far = socket.socketpair()
    with near, far, theirs, theirs_too:
        for send, ready, receive in (
            (lambda: one.send(1), other, other.recv),
            (lambda: theirs.send(1), theirs_too, theirs_too.recv),
            (lambda: near.send(b"x"), far, lambda: far.recv(1)),
        ):
            threading.Timer(0.05, send).start()
            assert wait([other, theirs_too, far], PATIENCE_S) == [ready]
            receive()
        assert wait([other, theirs_too, far], 0) == []


def test_the_end_is_ready_for_ever(session: rw.Session, pool: Pool) -> None:
    ours, theirs = Pipe(session=session)
    pool.apply_async(say_pid_and_wait, (theirs, "sleep"))
    del theirs
    pid = ours.recv()
    assert wait([ours], 0) == []
    os.kill(pid, signal.SIGKILL)
    for _ in range(3):
        assert wait([ours], PATIENCE_S) == [ours]
        with pytest.raises(EOFError):
            ours.recv()


def test_the_next_message_is_ready_as_soon_as_the_first_is_taken(session: rw.Session) -> None:
    one, other = Pipe(session=session)
    for number in range(100):
        one.send(number)
        one.send(number)
        assert wait([other], 0) == [other]
        assert other.recv() == number
        assert wait([other], 0) == [other]
        assert other.recv() == number
        assert wait([other], 0) == []


def test_messages_that_another_holder_takes_are_not_ready_any_more(session: rw.Session) -> None:
    one, other = Pipe(session=session)
    again = pickle.loads(pickle.dumps(other))
    assert wait([other, again], 0) == []
    for number in range(5):
        one.send(number)
        assert set(wait([other, again], PATIENCE_S)) == {other, again}
        assert again.recv() == number
        assert wait([other, again], 0) == []


def test_select_and_asyncio_take_the_descriptor(session: rw.Session, pool: Pool) -> None:
    ours, theirs = Pipe(session=session)
    pool.apply_async(echo, (theirs,))
    received: list[int] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def read() -> None:
            received.append(ours.recv())
            if len(received) == 50:
                done.set()

        loop.add_reader(ours, read)
        for number in range(50):
            ours.send(number)
        await asyncio.wait_for(done.wait(), PATIENCE_S)
        loop.remove_reader(ours)

    asyncio.run(main())
    assert received == list(range(50))
    ours.send("more")
    assert select.select([ours], [], [], PATIENCE_S)[0] == [ours]


def test_a_connection_has_a_descriptor_only_where_one_is_asked_for(session: rw.Session) -> None:
    one, other = Pipe(session=session)
    one.send(1)
    gc.collect()  # what earlier tests have left may have descriptors
    before = len(os.listdir("/proc/self/fd"))
    fd = other.fileno()
    assert other.fileno() == fd
    assert len(os.listdir("/proc/self/fd")) == before + 1
    other.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_descriptor_goes_with_its_connection(session: rw.Session) -> None:
    _one, other = Pipe(session=session)
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    other.fileno()
    del other
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_loss_of_the_depot_is_heard_everywhere(session: rw.Session) -> None:
    one, other = Pipe(session=session)
    waiting, _far = Pipe(session=session)
    errors: list[BaseException] = []

    def receive() -> None:
        try:
            waiting.recv()
        except EOFError as error:
            errors.append(error)

    assert wait([other], 0) == []
    thread = threading.Thread(target=receive)
    thread.start()
    os.kill(depot_pid(one), signal.SIGKILL)
    thread.join(120)
    assert isinstance(errors[0], rw.PeerLost)
    assert wait([other], PATIENCE_S) == [other]
    for call in (other.recv, other.poll, lambda: one.send(1)):
        with pytest.raises(rw.PeerLost, match=r"the Pipe \d+ .*is gone"):
            call()


def depot_pid(connection: Connection) -> int:
    return listener_pid(connection._reference.address)
