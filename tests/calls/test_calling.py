"""Every way of calling, over real sockets: within one process and to another one."""

from __future__ import annotations

import asyncio
import concurrent.futures
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

import pytest

from ropewalk.calls import call_context, rpc_connection
from ropewalk.calls.incoming import Served
from ropewalk.errors import DeadlineExceeded, NotPicklable, RemoteError
from tests.calls.ends import End, ends, far
from tests.calls.objects import Careless, Refused, Sample, Target
from tests.patience import PATIENCE_S, wait_until


def test_a_call_returns_what_the_method_returned(client: Any) -> None:
    assert client.add(3) == 3 and client.add(n=4) == 7 and client.empty() is None
    assert client.keyed(1, second="b") == (1, "b") and client.keyed([1]) == ([1], 2)


def test_a_future_has_the_result_and_the_error(client: Any) -> None:
    futures = [client.add.future(1) for _ in range(200)]
    assert [future.result() for future in futures] == list(range(1, 201))
    failed = client.fail.future("x")
    assert isinstance(failed.exception(), KeyError)
    with pytest.raises(KeyError, match="x"):
        failed.result()


def test_futures_work_with_all_of_concurrent_futures(client: Any) -> None:
    futures = [client.echo.future(number) for number in range(100)]
    called: list[Any] = []
    for future in futures:
        future.add_done_callback(called.append)
    done, not_done = concurrent.futures.wait(futures, timeout=PATIENCE_S)
    assert len(done) == 100 and not not_done
    more = [client.echo.future(number) for number in range(100)]
    assert {future.result() for future in concurrent.futures.as_completed(more, timeout=PATIENCE_S)} == set(range(100))
    wait_until(lambda: len(called) == 100)
    first, _ = concurrent.futures.wait(
        [client.empty.future(), client.sleep.future(0.2)], return_when=concurrent.futures.FIRST_COMPLETED
    )
    assert len(first) == 1
    cancelled = client.sleep.future(0.1)
    cancelled.cancel()
    assert concurrent.futures.wait([cancelled], timeout=PATIENCE_S).done == {cancelled}


def test_a_callback_of_a_future_may_call_again(client: Any) -> None:
    answers: list[int] = []
    done = threading.Event()

    def again(future: Any) -> None:
        answers.append(future.result())
        answers.append(client.add(1))
        done.set()

    client.add.future(1).add_done_callback(again)
    assert done.wait(120) and answers == [1, 2]


def test_a_result_that_is_not_there_in_time_is_a_timeout_and_comes_later(client: Any, target: Target) -> None:
    future = client.wait.future()
    with pytest.raises(TimeoutError):
        future.result(timeout=0.02)
    with pytest.raises(TimeoutError):
        future.exception(timeout=0.01)
    client.open()
    assert future.result(timeout=120) == "through"


def test_a_future_is_finished_while_another_thread_reads_for_a_long_call(client: Any, target: Target) -> None:
    # The thread that waits for a long call reads for all. It once gave the futures of others their results only when
    # its own answer had come.
    client.empty()
    thread = threading.Thread(target=client.wait)
    thread.start()
    wait_until(target.entered.is_set)
    futures = [client.beside.future() for _ in range(3)]
    assert [future.result(timeout=120) for future in futures] == ["beside"] * 3
    called = threading.Event()
    client.beside.future().add_done_callback(lambda _: called.set())
    assert called.wait(120)
    client.open()
    thread.join()


def test_answers_that_came_with_another_one_reach_their_callers(client: Any, target: Target) -> None:
    # A thread that had read its own answer left those behind it in its buffer, which the kernel announces to nobody.
    for _ in range(30):
        barrier = threading.Barrier(4)
        results: list[int] = []

        def call(barrier: threading.Barrier = barrier, results: list[int] = results) -> None:
            barrier.wait()
            results.extend(client.echo(number) for number in range(20))

        threads = [threading.Thread(target=call) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert len(results) == 80


def test_a_coroutine_awaits_a_hundred_calls(client: Any) -> None:
    async def main() -> list[int]:
        return await asyncio.gather(*(client.echo.aio(number) for number in range(100)))

    assert asyncio.run(main()) == list(range(100))


def test_a_cancelled_task_cancels_its_call(client: Any, target: Target, served: Served) -> None:
    async def main() -> None:
        running = asyncio.ensure_future(client.wait.aio())
        waiting = asyncio.ensure_future(client.note.aio("never"))
        await asyncio.sleep(0)  # now they have begun
        wait_until(lambda: served.num_waiting == 1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        while served.num_waiting:
            await asyncio.sleep(0.001)
        target.gate.set()
        assert await running == "through"

    asyncio.run(main())
    assert client.noted() == []


def test_send_does_not_wait_and_calls_keep_their_order(client: Any) -> None:
    for number in range(500):
        client.note.send(number)
    assert client.noted() == list(range(500))


def test_a_send_reaches_the_service_though_nobody_waits(client: Any, target: Target) -> None:
    for number in range(10):
        client.note.send(number)  # all but the first are held for a moment
    wait_until(lambda: len(target.seen) == 10)
    client.fail.send("dropped")


def test_a_generator_streams_in_order_and_other_calls_come_between(client: Any) -> None:
    assert list(client.items(1000)) == list(range(1000))
    stream = client.items(1000)
    assert next(stream) == 0 and client.echo("between") == "between"
    assert [next(stream) for _ in range(50)] == list(range(1, 51))
    stream.close()
    with pytest.raises(StopIteration):
        next(stream)


def test_a_stream_ends_with_what_its_generator_raised(client: Any) -> None:
    stream = client.odd_items()
    assert next(stream) == 1
    with pytest.raises(Refused) as caught:
        next(stream)
    assert caught.value.code == 8 and list(stream) == []


def test_a_method_that_streams_has_no_future(client: Any) -> None:
    for way in (client.items.future, client.items.aio, client.items.send, client.all.items.send):
        with pytest.raises(TypeError, match="streams"):
            way(3)
    with pytest.raises(TypeError, match="streams"):
        client.all.items(3)


def test_replicas_are_called_one_all_or_any(end: End) -> None:
    targets = [Target() for _ in range(3)]
    for replica, target in enumerate(targets):
        target.count = 10 * replica
        end.serve(target, "many", replica)
    client = end.client("many", Target)
    assert len(client) == 3 and client.all.read() == [0, 10, 20]
    assert client[1].add(1) == 11 and client[-1].read() == 20
    assert client.all.add.future(1).result() == [1, 12, 21]
    assert sorted(client.any.read() for _ in range(6)) == [1, 1, 12, 12, 21, 21]
    client.all.note.send("x")
    assert client.all.noted() == [["x"]] * 3
    assert [one.read() for one in client] == [1, 12, 21]

    async def main() -> list[int]:
        return await client.all.read.aio()

    assert asyncio.run(main()) == [1, 12, 21]
    with pytest.raises(IndexError, match="3 replicas"):
        client[3]
    with pytest.raises(TypeError, match="is chosen by its number, not by 'a'"):
        client["a"]
    with pytest.raises(KeyError):
        client.all.fail.future("x").result()


def test_any_prefers_the_replica_with_the_fewest_calls_under_way(tmp_path: Path) -> None:
    with ends(tmp_path, "client", "a", "b") as (end, a, b):
        busy, idle = Target(), Target()
        a.serve(busy, "two", 0)
        b.serve(idle, "two", 1)
        client = end.client("two", Target)
        client.all.empty()
        waiting = client[0].wait.future()
        for number in range(5):
            client.any.note(number)
        assert idle.seen == list(range(5))
        busy.gate.set()
        waiting.result()


def test_names_that_do_not_exist_are_explained(client: Any) -> None:
    with pytest.raises(AttributeError, match=r"did you mean 'echo'\?"):
        _ = client.ecko
    with pytest.raises(TypeError, match="Give the handle of"):
        __import__("pickle").dumps(client)
    assert "echo" in dir(client) and repr(client) == "<client of target>"
    with pytest.raises(AttributeError, match="_seen: names that begin with an underscore are private"):
        _ = client._seen
    with pytest.raises(
        AttributeError, match="only methods can be called: no attributes, properties or async functions"
    ):
        _ = client.seen


def test_nothing_can_be_set_on_a_client_as_it_would_not_reach_the_service(client: Any, target: Target) -> None:
    # `client.weights = x` was silently kept by the client.
    with pytest.raises(AttributeError, match="setting its 'seen' would not reach the service; write a method"):
        client.seen = [1]
    assert target.seen == []


# What travels


def test_exceptions_arrive_with_their_type_and_the_remote_traceback(client: Any) -> None:
    with pytest.raises(Refused) as caught:
        client.fail("custom")
    assert (caught.value.name, caught.value.code) == ("ann", 7)
    assert "objects.py" in str(caught.value.__cause__) and "incoming.py" not in str(caught.value.__cause__)
    with pytest.raises(SystemExit):
        client.fail("exit")


@pytest.mark.parametrize("way", ["call", "future"])
def test_exceptions_that_cannot_travel_arrive_as_text(client: Any, way: str) -> None:
    fail = client.fail if way == "call" else lambda how: client.fail.future(how).result()
    with pytest.raises(RemoteError, match=r"Careless: one"):
        fail("careless")
    assert Careless
    with pytest.raises(Exception, match="it holds a lock"):
        fail("locked")
    assert client.echo(1) == 1


def test_values_that_cannot_travel_are_refused_at_either_end(client: Any) -> None:
    with pytest.raises(NotPicklable, match="lock"):
        client.echo(threading.Lock())
    with pytest.raises(NotPicklable):
        client.echo.future(threading.Lock())
    with pytest.raises(Exception, match="lock"):
        client.unpicklable()
    assert client.echo(1) == 1


@pytest.mark.parametrize(
    "size", [16, 4_000, 65_536, 600_000, 10_000_000, pytest.param(200_000_000, marks=pytest.mark.soak)]
)
def test_arrays_of_any_size_go_there_and_back(tmp_path: Path, size: int) -> None:
    np = pytest.importorskip("numpy")
    with far(tmp_path) as (_, _end, client):
        array = np.arange(size // 8, dtype=np.int64)
        back = client.echo(array)
        assert back.dtype == array.dtype and np.array_equal(back, array)
        back[0] = 5  # the receiver's own
        future = client.echo.future(array)
        array[:] = -1  # the call has what it was given
        assert future.result()[-1] == size // 8 - 1


def test_numpy_scalars_dataclasses_and_odd_arrays_go_there_and_back(client: Any) -> None:
    np = pytest.importorskip("numpy")
    scalar = client.echo(np.float32(1.5))
    assert scalar == np.float32(1.5) and type(scalar) is np.float32
    sample = client.echo(Sample(np.ones((3, 2)), 0.5))
    assert isinstance(sample, Sample) and sample.observation.shape == (3, 2)
    for array in (np.zeros(0), np.ones((3, 4)).T, np.arange(10)[::2], np.array("text"), np.ones((2, 2), order="F")):
        assert np.array_equal(client.echo(array), array)


def test_tensors_go_there_and_back(client: Any) -> None:
    torch = pytest.importorskip("torch")
    for tensor in (torch.arange(4), torch.zeros(300_000), torch.ones(2, 3).T):
        back = client.echo({"weights": tensor})["weights"]
        assert torch.equal(back, tensor)
        back += 1  # the receiver's own


def test_items_of_a_stream_may_be_large(tmp_path: Path) -> None:
    np = pytest.importorskip("numpy")
    with far(tmp_path) as (_, _end, client):
        for number, array in enumerate(client.arrays(40, 1_000_000)):
            assert array.nbytes == 1_000_000 and np.all(array == number)


# Many at once


def test_eight_threads_share_a_client(tmp_path: Path) -> None:
    with far(tmp_path) as (_, _end, client):
        total = 8 * 300
        seen: list[int] = []

        def work() -> None:
            for number in range(100):
                seen.append(client.add())
                future = client.add.future()
                client.add.send()
                if number % 2:
                    future.add_done_callback(lambda one: seen.append(one.result()))
                else:
                    seen.append(future.result())

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive()
        wait_until(lambda: len(seen) == 8 * 200)
        assert len(set(seen)) == 8 * 200 and client.read() == total


def test_whoever_stops_reading_hands_on_to_one_who_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc_connection, "_LOOK_UP_S", 3600.0)  # of a sleeper whom nobody wakes
    with ends(tmp_path, "client", "server") as (end, server):
        target = Target()
        served = server.serve(target, "target")
        client = end.client("target", Target)
        client.empty()

        def read_for_a_while() -> None:
            with pytest.raises(DeadlineExceeded), call_context.deadline(2.0):  # it has to come to its method in it
                client.wait()

        reader, sleeper = threading.Thread(target=read_for_a_while), threading.Thread(target=client.wait_beside)
        reader.start()
        wait_until(target.entered.is_set)
        sleeper.start()
        wait_until(lambda: len(served.running) == 2)
        reader.join()
        target.gate.set()
        sleeper.join(120)
        assert not sleeper.is_alive(), "nobody reads"


def test_no_wake_up_is_lost_among_all_ways_of_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Threads that wait hand the reading of the link to each other and to the loop and back. A thread that is forgotten
    # in this looks up after a second; here it does not, and hangs.
    monkeypatch.setattr(rpc_connection, "_LOOK_UP_S", 3600.0)
    with far(tmp_path) as (_, _end, client):
        client.empty()
        counts = [0] * 8
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)

        def work(index: int) -> None:
            number = index
            for _ in range(121):  # eleven of each kind
                number += 7
                kind = number % 11
                if kind < 3:
                    assert client.echo(number) == number
                elif kind < 5:
                    futures = [client.echo.future(number + at) for at in range(kind)]
                    assert [future.result(120) for future in futures] == [number + at for at in range(kind)]
                elif kind == 5:
                    called = threading.Event()
                    client.empty.future().add_done_callback(lambda _, called=called: called.set())
                    assert called.wait(120)
                elif kind == 6:
                    with call_context.deadline(3600.0):
                        client.empty()
                elif kind == 7:
                    client.empty.send()
                elif kind == 8:
                    assert list(client.items(20)) == list(range(20))
                elif kind == 9:
                    client.echo.future(number).cancel()
                else:
                    with pytest.raises(DeadlineExceeded), call_context.deadline(0.0):
                        client.empty()
                counts[index] += 1

        threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        sys.setswitchinterval(interval)
        assert counts == [121] * 8, "a thread hangs"


def test_an_error_of_a_call_has_no_frames_of_ours(client: Any) -> None:
    # A deadline that had passed was told below six frames of replicas, connections and resolvers.
    def files_of(error: BaseException) -> list[str]:
        return [frame.filename for frame in traceback.extract_tb(error.__traceback__)]

    with pytest.raises(DeadlineExceeded) as late, call_context.deadline(0.0):
        client.empty()
    with pytest.raises(KeyError) as remote:
        client.fail("x")
    assert files_of(late.value) == files_of(remote.value) == [__file__]


def test_a_method_that_is_not_there_is_answered_with_those_that_are(tmp_path: Path) -> None:
    # It read "far has no method 'nothing' It has: empty, ...".
    with ends(tmp_path, "client") as end:
        client = end.client("far", Target)
        with pytest.raises(AttributeError, match=r"far has no method 'zyx'; it has \w+, "):
            client.zyx()
        with pytest.raises(AttributeError, match=r"far has no method 'emptty'; did you mean 'empty'\? It has \w+, "):
            client.emptty()
        with pytest.raises(AttributeError, match="`run` is the service's own work"):
            client.run()
