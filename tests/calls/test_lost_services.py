"""Services that die, hang, move and come back in the middle of calls: every caller hears of it, and nothing hangs."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from ropewalk.calls import call_context
from ropewalk.calls.client import Client
from ropewalk.calls.directory import ReplicaLocation
from ropewalk.calls.markers import methods_of
from ropewalk.calls.resolver import ReplicaResolver
from ropewalk.calls.rpc_connection import MAX_IN_FLIGHT
from ropewalk.errors import DeadlineExceeded, ProgramStopped, ServiceLost
from ropewalk.transport.client import dial
from tests.calls.ends import End, FarProcess, ends, far, num_memory_files
from tests.calls.objects import Target
from tests.interrupting import interrupt_after_receiving, interrupts_at_each_step
from tests.patience import PATIENCE_S, wait_until

KILLED = ReplicaLocation("failed", cause="killed by SIGKILL")


def in_threads(*works: Callable[[], object]) -> list[Any]:
    """What each of some functions returned or raised, when run at the same time."""
    outcomes: list[Any] = [None] * len(works)

    def run(index: int) -> None:
        try:
            outcomes[index] = works[index]()
        except Exception as error:
            outcomes[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a call hangs"
    return outcomes


def num_under_way(end: End) -> int:
    """The number of calls that have begun on the only link of this end."""
    (connection,) = end.caller._connections.values()
    return connection.num_pending


def test_a_thread_that_dials_while_its_process_ends_its_calls_leaves_no_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # `close` had looked for links before this one was there, so it stayed open until the loop ended.
    with far(tmp_path) as (_, end, client):

        def dial_meanwhile(*args: Any, **options: Any) -> Any:
            link = dial(*args, **options)
            end.caller.close("this process ends")
            links.append(link)
            return link

        links: list[Any] = []
        monkeypatch.setattr("ropewalk.calls.caller.dial", dial_meanwhile)
        with pytest.raises(ProgramStopped, match="this process ends"):
            client.add()
        assert links[0].closed


def test_every_caller_of_a_killed_service_hears_how_it_ended(tmp_path: Path) -> None:
    with far(tmp_path) as (process, end, client):
        stream = client.items(100_000)
        assert next(stream) == 0
        future, called = client.sleep.future(60), threading.Event()
        future.add_done_callback(lambda _: called.set())
        queued = [client.add.future() for _ in range(20)]
        begun = num_under_way(end)

        def kill() -> None:
            wait_until(lambda: num_under_way(end) == begun + 1)  # a thread may begin late on a busy host
            process.kill()
            time.sleep(0.05)
            end.places.put("far", KILLED)

        outcomes = in_threads(
            kill,
            lambda: client.sleep(60),
            lambda: list(stream),
            future.result,
            *(one.result for one in queued),
        )
        for outcome in outcomes[1:]:
            assert isinstance(outcome, ServiceLost) and outcome.cause == "killed by SIGKILL" and outcome.started
            assert "mark it @rw.idempotent" in str(outcome)
        assert called.wait(120)
        with pytest.raises(ServiceLost, match="killed by SIGKILL") as caught:
            client.add()
        assert not caught.value.started
        with pytest.raises(ServiceLost):
            client.add.future().result()
        with pytest.raises(ServiceLost):
            client.add.send()


def test_news_that_come_late_are_waited_for_where_nobody_listens_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine the agent said after more than 2 s that SIGKILL ended the process, and the caller had heard by
    # then that "the peer closed the link".
    monkeypatch.setattr("ropewalk.calls.resolver._NEWS_S", 0.01)
    with far(tmp_path) as (process, end, client):
        answers_at = end.caller.connection_to

        def connection_to(name: str, place: ReplicaLocation, timeout_s: float) -> Any:
            if not process.process.poll():
                return answers_at(name, place, timeout_s)
            threading.Timer(0.1, end.places.put, ("far", KILLED)).start()  # the caller has found nobody by then
            return answers_at(name, place, timeout_s)

        monkeypatch.setattr(end.caller, "connection_to", connection_to)
        outcomes = in_threads(lambda: client.sleep(60), lambda: (time.sleep(0.1), process.kill()))
        assert isinstance(outcomes[0], ServiceLost) and outcomes[0].cause == "killed by SIGKILL"


@pytest.mark.parametrize(("generation", "cause"), [(1, "killed by SIGKILL"), (0, "the peer closed the link")])
def test_the_cause_is_known_although_the_service_is_up_again_and_is_never_that_of_an_earlier_death(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, generation: int, cause: str
) -> None:
    # A process that is quick to come again was told as up, without a cause, before its callers had looked.
    monkeypatch.setattr("ropewalk.calls.resolver._NEWS_S", 0.01)
    with far(tmp_path) as (process, end, client):
        before = dataclasses.replace(end.places.find("far", 0), cause="killed by SIGKILL")
        end.places.put("far", before)
        future = client.sleep.future(60)
        end.places.put("far", dataclasses.replace(before, generation=generation))
        if generation == 0:  # then its link alone is lost, and the process lives
            monkeypatch.setattr(ReplicaResolver, "_nobody_listens", lambda *_: False)
        process.kill()
        with pytest.raises(ServiceLost) as caught:
            future.result()
        assert caught.value.cause == cause


def test_the_exception_of_a_lost_call_is_returned_and_not_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Another thread finds out what became of the service; who waited for that in `exception` had it raised.
    asked, told = threading.Event(), threading.Event()

    def wait_for_news(*_: object) -> ReplicaLocation:
        asked.set()
        assert told.wait(PATIENCE_S)
        return KILLED

    def tell() -> None:
        assert asked.wait(PATIENCE_S)
        wait_until(lambda: "_condition" in vars(future) and future._condition._waiters)
        told.set()

    with far(tmp_path) as (process, end, client):
        monkeypatch.setattr(end.places, "wait_for_news", wait_for_news)
        future = client.sleep.future(60)
        process.kill()
        outcome = in_threads(lambda: ("returned", future.exception(PATIENCE_S)), tell)[0]
        assert outcome == ("returned", future.exception()) and isinstance(outcome[1], ServiceLost)
        with pytest.raises(ServiceLost):
            future.result()


def test_the_error_of_a_lost_call_does_not_hold_its_arguments(tmp_path: Path) -> None:
    np = pytest.importorskip("numpy")
    with far(tmp_path) as (process, end, client):
        client.empty()
        before = num_memory_files()
        gc.disable()  # which would find the cycles at some moment
        try:
            process.kill(signal.SIGSTOP)
            future = client.echo.future(np.ones(1_000_000))
            assert num_memory_files() == before + 1
            end.places.put("far", KILLED)
            process.kill()
            error = future.exception(PATIENCE_S)
            assert isinstance(error, ServiceLost)
            wait_until(lambda: num_memory_files() == before, "the error keeps the arguments")
        finally:
            gc.enable()


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_connection_keeps_no_call_that_is_over(tmp_path: Path, is_lost: bool) -> None:
    """The call for which a thread had read last stayed with its connection, with its result."""
    with far(tmp_path) as (process, end, client):
        gc.disable()  # the connection alone must have let it go
        try:
            future = client.sleep.future(60 if is_lost else 0.01)
            if is_lost:
                end.places.put("far", KILLED)
                process.kill()
            assert isinstance(future.exception(PATIENCE_S), ServiceLost) == is_lost
            is_there = weakref.ref(future)
            del future
            wait_until(lambda: is_there() is None, "a call that is over is kept")
        finally:
            gc.enable()


def test_an_idempotent_call_is_repeated_when_its_service_has_come_back(tmp_path: Path) -> None:
    with far(tmp_path) as (process, end, client):
        gate = tmp_path / "gate"  # or the first process would answer on a busy host
        is_there = str(gate)
        works = [
            lambda: client.pid_when(is_there),
            client.pid_when.future(is_there).result,
            lambda: client.sleep(60),
        ]

        def restart() -> int:
            wait_until(lambda: num_under_way(end) == 3)  # one that begins later would ask the successor
            process.kill()
            end.places.put("far", ReplicaLocation("waiting", cause="it restarts"))
            successor = FarProcess(tmp_path, "Target", "successor")
            end.places.put("far", successor.place)
            successors.append(successor)
            gate.touch()
            return successor.process.pid

        successors: list[FarProcess] = []
        try:
            pid, first, second, lost = in_threads(restart, *works)
            assert first == second == pid
            assert isinstance(lost, ServiceLost) and "it is being restarted" in str(lost)
            assert client.pid() == pid, "a client follows by itself"
        finally:
            successors[0].close()


def test_a_future_is_repeated_with_the_arguments_it_was_made_with(tmp_path: Path) -> None:
    np = pytest.importorskip("numpy")
    with far(tmp_path) as (process, end, client):
        client.empty()
        end.places.put("far", ReplicaLocation("waiting"))
        process.kill()
        wait_until(lambda: end.caller._connections[process.place.address].closed)
        small, large = np.ones(10_000), np.ones(1_000_000)
        futures = [client.echo.future(small), client.echo.future(large), *(client.note.future(n) for n in range(50))]
        small[:], large[:] = 0, 0
        successor = FarProcess(tmp_path, "Target", "successor")
        try:
            end.places.put("far", successor.place)
            assert futures[0].result(120).sum() == 10_000 and futures[1].result(120).sum() == 1_000_000
            assert [future.result(120) for future in futures[2:]] == [None] * 50
            assert client.noted() == list(range(50)), "they kept their order"
            del futures
            wait_until(lambda: num_memory_files() <= 1, "memory files are open")
        finally:
            successor.close()


def test_a_call_waits_for_a_service_that_starts_as_long_as_its_deadline_allows(tmp_path: Path) -> None:
    with ends(tmp_path, "client") as end:
        end.places.put("far", ReplicaLocation("waiting", cause="it is being started"))
        client = end.client("far", Target)
        with pytest.raises(DeadlineExceeded, match="it is being started"), call_context.deadline(0.05):
            client.empty()
        with call_context.deadline(0.05):
            future = client.empty.future()
        with pytest.raises(DeadlineExceeded):
            future.result(120)
        future = client.echo.future(1)
        assert not future.done()
        (far_process,) = in_threads(lambda: FarProcess(tmp_path, "Target", "far", end.places))
        try:
            assert future.result(120) == 1
        finally:
            far_process.close()


def test_a_stopped_program_says_so(tmp_path: Path) -> None:
    with far(tmp_path) as (process, end, client):
        running = client.sleep.future(60)
        end.places.put("far", ReplicaLocation("stopped", cause="the program is stopping"))
        process.kill()
        with pytest.raises(
            ProgramStopped, match=r"ended with the program while it ran sleep\(\): the program is stopping"
        ):
            running.result(120)
        with pytest.raises(ProgramStopped, match="the program is stopping"):
            client.empty()


def test_calls_under_way_end_with_their_own_caller(tmp_path: Path) -> None:
    with far(tmp_path) as (_, end, client):
        future = client.sleep.future(60)

        def close() -> None:
            time.sleep(0.1)
            end.caller.close()

        outcomes = in_threads(close, lambda: client.sleep(60), future.result)
        assert all(isinstance(outcome, ProgramStopped) for outcome in outcomes[1:]), outcomes
        with pytest.raises(ProgramStopped):
            client.empty()


def test_a_hung_service_costs_a_caller_no_more_than_its_deadline(tmp_path: Path) -> None:
    with far(tmp_path) as (process, _end, client):
        client.empty()
        process.kill(signal.SIGSTOP)
        wait_until(lambda: psutil.Process(process.process.pid).status() == psutil.STATUS_STOPPED)
        with call_context.deadline(0.2):
            future = client.echo.future(1)
            with pytest.raises(DeadlineExceeded):
                client.echo(2)
            with pytest.raises(DeadlineExceeded):
                future.result()
            with pytest.raises(DeadlineExceeded):
                next(client.items(3))
        process.kill(signal.SIGCONT)
        assert client.echo(3) == 3


def test_a_service_that_lost_its_caller_goes_on(tmp_path: Path) -> None:
    """The other direction: the caller is killed during its call."""
    with far(tmp_path) as (process, _end, client):
        code = (
            "import sys\nfrom pathlib import Path\nfrom tests.calls.ends import *\n"
            "from tests.calls.objects import Target\n"
            "import numpy as np\n"
            "end = End(Path(sys.argv[1]), 'doomed', Places())\n"
            "end.places.put('far', ReplicaLocation('up', sys.argv[2], int(sys.argv[3]), token_of(KEY, 'client')))\n"
            "end.caller = Caller(end.loop, end.places, RUN, 'client')\n"
            "client = end.client('far', Target)\n"
            "stream = client.items(1000); next(stream)\n"
            "[client.note(np.zeros(1_000_000)) for _ in range(3)]\n"
            "client.sleep.future(0.5)\n"
            "[client.note.future(np.zeros(1_000_000)) for _ in range(3)]\n"
            "client.open()\n"
            "print('under way', flush=True)\n"
            "client.sleep(60)\n"
        )
        place = process.place
        pytest.importorskip("numpy")
        doomed = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path), place.address, str(place.target)], stdout=subprocess.PIPE
        )
        assert doomed.stdout
        assert doomed.stdout.readline() == b"under way\n"
        doomed.kill()
        doomed.wait()
        doomed.stdout.close()
        (tmp_path / "doomed.sock").unlink()
        assert client.echo(1) == 1
        wait_until(lambda: "closed" in str(client.noted()), "its stream was not closed")
        del doomed
        seen = [value for value in client.noted() if not isinstance(value, tuple)]
        assert len(seen) == 3, "calls ran for nobody, or those before were lost"


def test_a_link_that_ends_in_the_middle_of_a_large_frame_loses_its_call_only(tmp_path: Path) -> None:
    with ends(tmp_path, "client") as end:
        path = str(tmp_path / "proxy.sock")
        (tmp_path / "x").mkdir()
        with far(tmp_path / "x") as (process, _other, _client):
            proxy = Proxy(path, process.path)
            end.places.put("far", ReplicaLocation("up", f"unix:{path}", process.place.target, process.place.token))
            client = end.client("far", Target)
            assert client.echo(1) == 1
            future = client.echo.future(b"x" * 400_000)
            assert future.result(120) == b"x" * 400_000
            proxy.bytes_left = 200_000
            begun = client.echo.future(b"x" * 400_000)
            outcomes = in_threads(
                lambda: client.echo(b"x" * 400_000),
                begun.result,
                # One that begins when the link has ended would dial for ever: its new link ends in the handshake.
                lambda: wait_until(lambda: num_under_way(end) == 2) and proxy.may_cut.set(),
            )
            for outcome in outcomes[:2]:
                assert isinstance(outcome, ServiceLost), outcome
            proxy.bytes_left = 1 << 40
            assert client.echo(2) == 2
            proxy.close()


class Proxy:
    """Passes bytes between a client and a unix socket; after a number of them to the server, it cuts when it may."""

    def __init__(self, path: str, target: str) -> None:
        self.bytes_left = 1 << 40
        self.may_cut = threading.Event()
        self.target = target
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen(8)
        self.threads = [threading.Thread(target=self.serve)]
        self.threads[0].start()

    def serve(self) -> None:
        while True:
            try:
                ours, _ = self.listener.accept()
            except OSError:
                return
            theirs = socket.socket(socket.AF_UNIX)
            theirs.connect(self.target)
            for source, sink, counted in ((ours, theirs, True), (theirs, ours, False)):
                self.threads.append(threading.Thread(target=self.carry, args=(source, sink, counted)))
                self.threads[-1].start()

    def carry(self, source: socket.socket, sink: socket.socket, counted: bool) -> None:
        try:
            while data := source.recv(65536):
                if counted and self.bytes_left < len(data):
                    assert self.may_cut.wait(PATIENCE_S)
                    break
                if counted:
                    self.bytes_left -= len(data)
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        source.close()

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


# Calls that are done once, though they are sent again


def drop_links(server: End) -> None:
    """Lose the links of all callers, as when a network does."""
    links, server.links = server.links, []
    server.loop.call_soon(lambda: [(link.close(), server.server.hang_up(link)) for link in links])


def test_a_call_that_was_done_when_its_link_was_lost_is_answered_and_not_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np = pytest.importorskip("numpy")
    monkeypatch.setattr("ropewalk.calls.resolver._NEWS_S", 0.0)  # the service itself stays
    with ends(tmp_path, "client", "server") as (end, server):
        target = Target()
        server.serve(target, "far")
        client = end.client("far", Target, retries=True)
        send_answer, lost = server.server._turns.reply, list[Any]()

        def lose_two(link: Any, answer: Any, parts: Any = ()) -> None:
            if len(lost) < 2:
                lost.append(answer)
                drop_links(server)
            else:
                send_answer(link, answer, parts)

        def with_lost_answers(call: Callable[[], Any]) -> Any:
            lost.clear()
            return call()

        monkeypatch.setattr(server.server._turns, "reply", lose_two)
        assert with_lost_answers(lambda: client.add(5)) == 5 == target.count
        assert len(lost) == 1, "the first answer was lost; the second came another way, from what was kept"
        assert with_lost_answers(lambda: client.add.future(1).result(120)) == 6 == target.count
        large = b"x" * 1_000_000
        assert with_lost_answers(lambda: client.echo(large)) == large
        with pytest.raises(KeyError, match="odd"):
            with_lost_answers(lambda: client.fail("odd"))
        assert with_lost_answers(lambda: client.double(np.ones(3)).sum()) == 6 and target.batches == [1]
        kept = next(iter(server.server._served.values())).once.state_dict()
        assert [len(answers) for _, _, answers in kept.values()] == [1], "only the last one's answer is kept"


def test_a_call_that_runs_on_when_its_link_is_lost_is_not_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ropewalk.calls.resolver._NEWS_S", 0.0)
    with ends(tmp_path, "client", "server") as (end, server):
        target = Target()
        served = server.serve(target, "far")
        client = end.client("far", Target, retries=True)
        blocked, queued, given_up = client.wait.future(), client.add.future(1), client.add.future(10)
        wait_until(target.entered.is_set)
        (running,) = served.lane.running.values()
        for num_repeats in (1, 2):
            drop_links(server)
            wait_until(lambda num_repeats=num_repeats: len(running.repeats) == num_repeats)  # type: ignore[attr-defined]
        given_up.cancel()
        wait_until(lambda: sorted(name.sequence for name in served.once_running) == [1, 2])
        target.gate.set()
        assert blocked.result(120) == "through" and queued.result(120) == 1
        assert target.most_inside == 1 and target.count == 1
        assert not served.once_running


def test_callers_that_retry_go_on_when_a_service_dies_in_the_middle_and_comes_back(tmp_path: Path) -> None:
    with far(tmp_path) as (process, end, client):
        retrying = end.client("far", Target, retries=True)

        def restart() -> None:
            time.sleep(0.1)
            process.kill()
            end.places.put("far", ReplicaLocation("waiting", cause="it restarts"))
            successors.append(FarProcess(tmp_path, "Target", "successor"))
            end.places.put("far", successors[0].place)

        def hurried() -> Any:
            with call_context.deadline(0.2):
                return retrying.sleep(1)

        successors: list[FarProcess] = []
        queued = [retrying.add.future() for _ in range(20)]
        doomed = client.sleep.future(60)  # sent before the service dies, however late the threads begin
        try:
            _, slept, late, lost, *added = in_threads(
                restart,
                lambda: retrying.sleep(0.2),
                hurried,
                doomed.result,
                *(one.result for one in queued),
            )
            assert slept == 0.2
            assert isinstance(late, DeadlineExceeded), "the deadline holds for all attempts together"
            assert isinstance(lost, ServiceLost) and 'on_lost="retry"' in str(lost), "others are told of it"
            assert len(added) == 20 and not any(isinstance(count, Exception) for count in added), added
            successors[0].kill()
            end.places.put("far", KILLED)
            with pytest.raises(ServiceLost, match="killed by SIGKILL"):
                retrying.add()
        finally:
            successors[0].close()


# Back-pressure


def test_a_slow_service_holds_its_callers_back_and_loses_nothing(tmp_path: Path) -> None:
    with ends(tmp_path, "client", "server") as (end, server):
        target = Target()
        served = server.serve(target, "slow")
        client = end.client("slow", Target)
        blocked = client.wait.future()
        wait_until(target.entered.is_set)
        total = 3 * MAX_IN_FLIGHT
        num_sent = [0]

        def send() -> None:
            for number in range(total):
                client.note.send(number)
                num_sent[0] += 1

        sender = threading.Thread(target=send)
        sender.start()
        wait_until(lambda: served.num_waiting >= MAX_IN_FLIGHT - 1)
        time.sleep(0.1)
        assert num_sent[0] <= MAX_IN_FLIGHT and served.num_waiting <= MAX_IN_FLIGHT, "the queue has no bound"
        with pytest.raises(DeadlineExceeded, match=f"{MAX_IN_FLIGHT} calls"), call_context.deadline(0.05):
            client.note.send("never")
        target.gate.set()
        sender.join(120)
        assert not sender.is_alive() and blocked.result() == "through"
        assert client.noted() == list(range(total))


def test_one_long_call_does_not_hold_up_those_for_whom_there_is_room(tmp_path: Path) -> None:
    # Who found no room once waited for the oldest call, which may be the longest.
    with ends(tmp_path, "client", "server") as (end, server):
        target = Target()
        server.serve(target, "slow")
        client = end.client("slow", Target)
        long = client.wait_beside.future()
        for number in range(3 * MAX_IN_FLIGHT):
            client.note.send(number)
        assert client.noted()[-1] == 3 * MAX_IN_FLIGHT - 1
        assert not long.done()
        target.gate.set()
        long.result()


# Ctrl-C


def interrupted(call: Callable[[], object], after_s: float = 0.1) -> None:
    timer = threading.Timer(after_s, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        call()
    timer.join()


def test_an_interrupt_ends_the_call_that_waits_and_no_other(tmp_path: Path) -> None:
    with far(tmp_path) as (process, end, client):
        client.empty()
        connection = end.caller._connections[process.place.address]
        interrupted(lambda: client.wait_beside())
        other = client.wait_beside.future()
        interrupted(lambda: client.wait())
        interrupted(other.result)
        interrupted(lambda: list(client.wait_until_entered() and client.wait()))
        client.open()
        assert other.result(120) == "beside" and client.echo(1) == 1
        assert end.caller._connections[process.place.address] is connection, "the link was given up"


def test_an_interrupt_of_a_thread_that_has_read_the_answer_of_another_lets_neither_wait_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It was once lost, because whole answers left no bytes of a next one, by which interrupts are found to have torn.
    monkeypatch.setattr("ropewalk.calls.resolver._NEWS_S", 0.0)
    with far(tmp_path) as (process, end, client):
        client.empty()
        connection = end.caller._connections[process.place.address]
        link, outcome = connection.link, list[Any]()

        def beside() -> None:
            wait_until(lambda: connection.reading_thread == threading.main_thread().ident, "no thread reads")
            try:
                outcome.append(client.wait_until_entered())
            except ServiceLost as error:
                outcome.append(error)

        thread = threading.Thread(target=beside, daemon=True)
        with monkeypatch.context() as patch:
            interrupt_after_receiving(link, patch)
            thread.start()
            with pytest.raises(KeyboardInterrupt):
                client.wait()
        thread.join(PATIENCE_S)
        assert outcome == [True], "the answer was lost, or the link was given up"
        client.open()


# An interrupt in the middle of dialling leaves the socket to the collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_at_any_step_of_a_call_leaves_those_of_other_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ropewalk.calls.resolver._NEWS_S", 0.0)  # a link is given up, and the service stays
    with far(tmp_path) as (_process, end, client):
        client.empty()
        num_done, over, methods = [0], threading.Event(), methods_of(Target)

        def call() -> None:
            fresh: Any = Client(end.caller, "far", "any", methods)  # it has to find the service, too
            with contextlib.suppress(ServiceLost):
                assert fresh.echo("one") == "one"
                assert fresh.echo.future("two").result() == "two"

        def beside() -> None:
            while not over.is_set():
                call()
                num_done[0] += 1

        thread = threading.Thread(target=beside, daemon=True)
        thread.start()
        num_steps = 0
        for step in interrupts_at_each_step(call):
            num_steps += 1
            before = num_done[0]
            wait_until(lambda before=before: num_done[0] > before + 1, f"a call hangs after an interrupt in {step}")
        over.set()
        thread.join(PATIENCE_S)
        assert not thread.is_alive() and num_steps > 50


# An interrupt in the middle of dialling leaves the socket to the collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("kind", ["call", "futures", "beside"])
# An interrupt may strike in a callback of a weak reference, too, where Python can only report it.
@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
def test_interrupts_at_any_moment_leave_the_client_usable(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A link is given up and the service stays: the thread beside shall call, and not wait for news that never come.
    monkeypatch.setattr("ropewalk.calls.resolver._NEWS_S", 0.0)
    with far(tmp_path) as (_process, _end, client):
        client.empty()
        stop, failures = threading.Event(), list[BaseException]()

        def beside() -> None:
            while not stop.is_set():
                try:
                    assert client.echo("beside") == "beside"
                except ServiceLost:
                    pass  # the link had to be given up in the middle of a frame
                except BaseException as error:
                    failures.append(error)

        thread = threading.Thread(target=beside)
        if kind == "beside":
            thread.start()
        num_interrupts = 0
        armed = False

        def interrupt(_number: int, _frame: object) -> None:
            # Once for each round, and never outside of one: there it would end the whole run of the tests.
            nonlocal armed
            if armed:
                armed = False
                raise KeyboardInterrupt

        before = signal.signal(signal.SIGINT, interrupt)
        signaller = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "import os, random, sys, time\nwhile os.getppid() == int(sys.argv[1]):\n"
                "    time.sleep(random.uniform(0.001, 0.006)); os.kill(int(sys.argv[1]), 2)",
                str(os.getpid()),
            ]
        )
        number = 0
        try:
            while num_interrupts < 100:
                try:
                    while True:
                        armed = True  # again, too, after one that Python could only report
                        number += 1
                        with contextlib.suppress(ServiceLost):
                            if kind == "futures":
                                futures = [client.echo.future(number + at) for at in range(5)]
                                assert [future.result() for future in futures] == [number + at for at in range(5)]
                            else:
                                assert client.echo(number) == number
                except KeyboardInterrupt:  # the only place where one can arrive: armed is what runs in this block
                    num_interrupts += 1
        finally:
            armed = False
            signaller.kill()
            signaller.wait()
            signal.signal(signal.SIGINT, before)
            stop.set()
        if kind == "beside":
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "a call hangs"
        assert not failures
        with call_context.deadline(PATIENCE_S):
            assert client.echo("after") == "after"
            assert [one.result() for one in [client.echo.future(at) for at in range(40)]] == list(range(40))
