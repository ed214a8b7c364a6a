"""Programs that are launched in every way, with every kind of node, and what travels between their nodes."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import importlib.util
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

import ropewalk as rw
from tests.patience import PATIENCE_S, wait_until
from tests.scenarios.launchers import is_alive, kill, launcher
from tests.scenarios.services import MODES, Counter, Gate, add_many, pid_of, serve_until_stopped, status_of
from tests.scenarios.tasks import note, noted, square, wait_for_file

np = pytest.importorskip("numpy")

pytestmark = pytest.mark.usefixtures("shared_session")

Mode = Literal["processes", "threads"]
each_mode = pytest.mark.parametrize("mode", MODES)


def say_and_serve(words: str) -> None:
    print(words, flush=True)
    rw.wait_for_stop()


# --- launching ---


def test_a_program_with_a_handle_to_nothing_is_refused_before_anything_starts(tmp_path: Path) -> None:
    path = str(tmp_path / "notes")
    program = rw.Program("unresolved")
    ghost = program.declare("ghost")
    program.add(rw.Worker(note, path, "started"), name="eager")
    program.add(rw.Worker(add_many, {"deep": [ghost]}, 1), name="lost")
    for mode in MODES:
        with pytest.raises(rw.ProgramInvalid, match="ghost") as caught:
            program.launch(mode)  # type: ignore[arg-type]
        assert len(caught.value.problems) == 1 and "'lost'" in caught.value.problems[0]
    assert noted(path) == []


def test_what_cannot_be_pickled_is_refused_with_the_name_of_the_argument() -> None:
    program = rw.Program("unpicklable")
    program.add(rw.Service(Counter, start=threading.Lock()), name="counter")
    with pytest.raises(rw.ProgramInvalid, match=r"kwargs\['start'\]"):
        program.launch()


def test_ranks_are_refused_as_threads_by_name() -> None:
    program = rw.Program("ranks")
    program.add(rw.RankGroup(serve_until_stopped, 2), name="trainers")
    with pytest.raises(rw.ProgramInvalid, match=r"trainers.*process of its own"):
        program.launch("threads")


def test_an_unknown_mode_or_a_copy_that_cannot_be_left_out_is_refused() -> None:
    program = rw.Program("odd")
    program.add(rw.Worker(serve_until_stopped))
    with pytest.raises(ValueError, match="mode must be"):
        program.launch("fibres")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="copy=False"):
        program.launch("processes", copy=False)


def tell_where(array: Any, path: str) -> None:
    """Note what the file is in which an array lies, and what its sum is when this process has written to it."""
    address = array.ctypes.data
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, _, _, _, inode, *name = line.split()
            low, high = (int(end, 16) for end in span.split("-"))
            if low <= address < high:
                array[0] += 1
                note(path, f"{name[:1]}:{inode}:{array.sum():.0f}")


def test_replicas_have_one_copy_of_a_large_argument_on_their_host_and_each_may_write_to_it(tmp_path: Path) -> None:
    # Each had its own: eight replicas with a dataset of 4 GB took 32 GB, and as long to start.
    path, table = str(tmp_path / "notes"), np.ones(1_000_000)
    program = rw.Program("tables")
    program.add(rw.Worker(tell_where, table, path), name="reader", replicas=2)
    with program.launch() as running:
        assert running.wait(120)
    first, second = noted(path)
    assert first == second and "memfd:ropewalk" in first and first.endswith(":1000001"), (first, second)


@each_mode
def test_five_nodes_are_ready_and_call_each_other(mode: Mode, tmp_path: Path) -> None:
    path, done = str(tmp_path / "notes"), tmp_path / "done"
    program = rw.Program("five")
    counter = program.add(rw.Service(Counter), name="counter")
    program.add(rw.Worker(add_many, counter, 20), name="adder", replicas=3)
    program.add(rw.Worker(_report, counter, path, done), name="reporter")
    with rw.launch(program, mode) as running:
        assert running.wait_ready(120)
        assert running.client("counter").get() <= 60
        done.touch()  # with its workers, the program ends
        assert running.wait(120)
        assert running.status().state == "completed"
    assert noted(path) == ["60"]


def _report(counter: Counter, path: str, done: Path) -> None:
    wait_until(lambda: counter.get() == 60 and done.exists())
    note(path, counter.get())


@each_mode
def test_two_programs_run_at_once_in_one_launcher_and_do_not_meet(mode: Mode) -> None:
    runs: list[rw.RunningProgram] = []
    for start in (100, 200):
        program = rw.Program("twin")
        program.add(rw.Service(Counter, start), name="counter")
        runs.append(program.launch(mode))
    with runs[0], runs[1]:
        clients = [running.client("counter") for running in runs]
        assert [client.add(1) for client in clients] == [101, 201]
        runs[0].stop()
        assert clients[1].add(1) == 202
        with pytest.raises(rw.CallError):
            clients[0].add(1)


@each_mode
def test_one_program_can_be_launched_twice_even_at_once(mode: Mode) -> None:
    program = rw.Program("twice")
    program.add(rw.Service(Counter), name="counter")
    with program.launch(mode) as first, program.launch(mode) as second:
        assert [first.client("counter").add(1), second.client("counter").add(2)] == [1, 2]
    with program.launch(mode) as third:
        assert third.client("counter").get() == 0


def test_nothing_runs_after_the_end_of_a_program_that_failed_to_start() -> None:
    program = rw.Program("fails")
    program.add(rw.Service(Keeper, Unloadable()), name="broken")
    program.add(rw.Worker(serve_until_stopped), replicas=2, name="idler")
    running = program.launch()
    with pytest.raises(rw.ProgramFailed, match="broken"):
        running.wait(120)
    assert all(not node.pid or not is_alive(node.pid) for node in running.status().nodes)


class Unloadable:
    """What can be sent and cannot be received."""

    def __reduce__(self) -> Any:
        return _raise_on_load, ()


def _raise_on_load() -> None:
    raise ImportError("no such library over there")


class LateLeaver:
    """Has something to do at the end of its process that takes a while, as loggers and profilers do."""

    def __init__(self, path: str) -> None:
        self.path = path

    def run(self) -> None:
        atexit.register(self.write)

    def write(self) -> None:
        time.sleep(0.5)
        note(self.path, "written")


def test_a_node_that_has_completed_is_given_time_for_its_exit_handlers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ropewalk.processes.process_manager._SILENT_S", 0.1)  # for those that go without a word
    path = str(tmp_path / "notes")
    program = rw.Program("late")
    program.add(rw.Worker(LateLeaver, path))
    with program.launch() as running:
        assert running.wait(120)
    assert noted(path) == ["written"]


def test_a_program_and_a_pool_share_a_session(tmp_path: Path) -> None:
    program = rw.Program("shared")
    program.add(rw.Service(Counter), name="counter")
    with rw.Pool(1) as pool, program.launch() as running:
        assert pool.apply(square, (3,)) == 9
        assert running.client("counter").add(1) == 1
        assert pool._session.run_id == running.status().run_id


def test_nodes_get_the_environment_that_they_are_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "notes")
    monkeypatch.delenv("OF_THE_TEST", raising=False)
    program = rw.Program("environment")
    program.add(rw.Worker(_note_variable, path), environment={"OF_THE_TEST": "yes"})
    program.launch().wait(120)
    assert noted(path) == ["yes"] and "OF_THE_TEST" not in os.environ
    with pytest.raises(rw.ProgramInvalid, match="environment"):
        program.launch("threads")


def _note_variable(path: str) -> None:
    note(path, os.environ["OF_THE_TEST"])


def test_the_output_of_nodes_can_be_read_by_name() -> None:
    program = rw.Program("talks")
    program.add(rw.Worker(_talk), name="talker", replicas=2)
    with program.launch() as running:
        assert running.wait(120)
        assert sorted(running.logs("talker").splitlines()) == ["line of 0", "line of 1"]


def test_output_of_two_programs_of_one_session_is_kept_apart() -> None:
    # Nodes of one name had one file: what a program had printed stood in the output of the next one.
    running: list[rw.RunningProgram] = []
    try:
        for number in range(2):
            program = rw.Program(f"program{number}")
            program.add(rw.Worker(say_and_serve, f"of program {number}"), name="namesake")
            running.append(program.launch())
        for number, each in enumerate(running):
            wait_until(lambda each=each: each.logs("namesake"))
            assert each.logs("namesake") == f"of program {number}\n"
    finally:
        for each in running:
            each.stop()


def _talk() -> None:
    print("line of", rw.current_node().replica)


def test_the_stack_of_a_node_that_is_busy_can_be_seen() -> None:
    program = rw.Program("stacks")
    program.add(rw.Service(Counter), name="counter")
    program.add(rw.Worker(serve_until_stopped), name="idler")
    with program.launch() as running:
        running.wait_ready(120)
        future = running.client("counter").sleep.future(0.5)
        wait_until(lambda: status_of(running, "counter").calls_running)
        stacks = running.stacks()
        assert "in sleep" in stacks["counter.0"] and "serve_until_stopped" in stacks["idler.0"]
        assert future.result(120) == "woke"
        running.stop()


# --- what travels ---


SIZES = [2, 1000, 20_000, 125_000, 2_500_000]


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{8 * size}B")
@each_mode
def test_arrays_of_every_size_go_there_and_come_back(mode: Mode, size: int) -> None:
    program = rw.Program("arrays")
    program.add(rw.Service(Counter), name="counter")
    sent = np.arange(size, dtype=np.float64)
    with program.launch(mode) as running:
        counter = running.client("counter")
        for back in (
            counter.echo(sent),
            counter.echo.future(sent).result(120),
            counter.echo({"deep": [sent]})["deep"][0],
        ):
            assert back.dtype == sent.dtype and np.array_equal(back, sent)
            back[0] = 7  # it can be written to, and is not what was sent
            assert sent[0] == 0


@each_mode
def test_two_hundred_megabytes_go_there_and_come_back(mode: Mode) -> None:
    program = rw.Program("arrays")
    program.add(rw.Service(Counter), name="counter")
    sent = np.zeros(25_000_000)
    sent[-1] = 5
    with program.launch(mode) as running:
        back = running.client("counter").echo(sent)
        assert back.nbytes == 200_000_000 and back[-1] == 5 and not back[:-1].any()


@dataclasses.dataclass(frozen=True)
class Batch:
    observations: Any
    reward: float
    done: bool


@each_mode
def test_scalars_dataclasses_and_odd_arrays_travel_as_what_they_are(mode: Mode) -> None:
    program = rw.Program("values")
    program.add(rw.Service(Counter), name="counter")
    with program.launch(mode) as running:
        echo = running.client("counter").echo
        for scalar in (np.float32(1.5), np.int64(-3), np.bool_(True), np.datetime64("2024-01-01"), np.complex128(1j)):
            back = echo(scalar)
            assert back == scalar and type(back) is type(scalar)
        batch = echo(Batch(np.ones((3, 2), np.float32), 0.5, False))
        assert type(batch) is Batch and batch.observations.shape == (3, 2) and batch.reward == 0.5
        for array in (
            np.empty((0, 3)),
            np.array(5),
            np.arange(12).reshape(3, 4).T,
            np.arange(100)[::7],
            np.asfortranarray(np.ones((200, 300))),
            np.array(["a", "long text"]),
            np.array([{"an": "object"}], dtype=object),
            np.rec.array([(1, 2.0)], dtype=[("a", int), ("b", float)]),
        ):
            back = echo(array)
            assert back.dtype == array.dtype and back.shape == array.shape and (back == array).all()
        for value in (None, b"", b"x" * 3_000_000, "ü", {1, 2}, (1,), range(3), 1 << 200, slice(1, 2), Path("/tmp")):
            assert echo(value) == value
        assert echo(bytearray(b"y" * 2_000_000)) == b"y" * 2_000_000


def test_arrays_travel_between_nodes_while_many_call_at_once(tmp_path: Path) -> None:
    path = str(tmp_path / "notes")
    program = rw.Program("arrays")
    counter = program.add(rw.Service(Counter), name="counter")
    program.add(rw.Worker(_exchange, counter, path), replicas=3)
    with program.launch() as running:
        assert running.wait(120)
    assert sorted(noted(path)) == ["0", "1", "2"]


def _exchange(counter: Counter, path: str) -> None:
    replica = rw.current_node().replica
    for size in (10, 100_000, 1_000_000, 10):
        sent = np.full(size, replica)
        futures = [counter.echo.future(sent) for _ in range(4)]  # type: ignore[attr-defined]
        assert all(np.array_equal(future.result(), sent) for future in futures)
    note(path, replica)


@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch")
@each_mode
def test_tensors_go_there_and_come_back(mode: Mode) -> None:
    import torch

    program = rw.Program("tensors")
    program.add(rw.Service(Counter), name="counter")
    with program.launch(mode) as running:
        echo = running.client("counter").echo
        for tensor in (
            torch.arange(4),
            torch.ones(1000, 1000),
            torch.tensor(2.5),
            torch.zeros(3, dtype=torch.bfloat16),
        ):
            back = echo(tensor)
            assert back.dtype == tensor.dtype and torch.equal(back, tensor)


def test_threads_copy_what_they_are_given_unless_they_are_told_not_to() -> None:
    program = rw.Program("copies")
    program.add(rw.Service(Keeper), name="keeper")
    mine = [1, 2]
    with program.launch("threads") as running:
        keeper = running.client("keeper")
        keeper.keep(mine)
        mine.append(3)
        assert keeper.kept() == [1, 2]
        assert keeper.kept() is not keeper.kept()


class Keeper:
    def __init__(self, value: Any = None) -> None:
        self.value = value

    def keep(self, value: Any) -> None:
        self.value = value

    def kept(self) -> Any:
        return self.value


SCRIPT = """
    import dataclasses
    import os
    import time

    import ropewalk as rw

    SCALE = 3

    @dataclasses.dataclass
    class Point:
        x: int

        def scaled(self):
            return Point(self.x * SCALE)

    class OffTheChart(Exception):
        def __init__(self, point, *, limit):
            super().__init__(f"{point} is beyond {limit}")
            self.point = point

        def __reduce__(self):
            return remake, (self.point,)

    def remake(point):
        return OffTheChart(point, limit=10)

    class Chart:
        def __init__(self, origin):
            self.points = [origin]

        def put(self, point):
            if point.x > 10:
                raise OffTheChart(point, limit=10)
            self.points.append(point.scaled())
            return self.points

    def walk(chart, start, outside):
        while not os.path.exists(outside):  # the program ends with this walk
            time.sleep(0.01)
        try:
            chart.put(Point(11))
        except OffTheChart as error:
            say("off", error.point, type(error).__module__)
        for step in range(2):
            points = chart.put(Point(start.x + step))
        say("walked", *points)

    if __name__ == "__main__":
        program = rw.Program("script")
        chart = program.add(rw.Service(Chart, Point(0)), name="chart")
        outside = os.path.abspath("outside")
        program.add(rw.Worker(walk, chart, Point(1), outside), name="walker")
        with program.launch(os.environ["HOW"]) as running:
            say("outside", type(running.client("chart").put(Point(0))[0]) is Point)
            open(outside, "x").close()
            running.wait()
        say("end")
"""


@each_mode
def test_classes_functions_and_exceptions_of_the_script_itself_travel(mode: Mode, tmp_path: Path) -> None:
    with launcher(SCRIPT, tmp_path, HOW=mode) as script:
        code, out, errors = script.end()
    assert code == 0, errors
    assert "off Point(x=11) __main__" in out
    assert "Point(x=3)" in out and "Point(x=6)" in out
    assert "outside True" in out and out.rstrip().endswith("end")


# --- kinds of nodes ---


def _work_in(counter: Counter, path: str) -> None:
    note(path, f"{counter.whoami()[0]}:{os.getpid()}")
    wait_until(lambda: len(noted(path)) == 2)


@pytest.mark.parametrize("as_", ["threads", "processes"])
def test_colocated_nodes_share_a_process_or_not_and_call_each_other(as_: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "notes")
    program = rw.Program("together")
    nodes = {"counter": rw.Service(Counter), "worker": rw.Worker(_work_in, program.declare("counter"), path)}
    handles = program.add(rw.Colocate(nodes, as_=as_), name="host")
    program.add(rw.Worker(_work_in, handles["counter"], path), name="visitor")
    with program.launch() as running:
        assert running.wait(120)
    pairs = [line.split(":") for line in noted(path)]
    assert len({pid for pid, _ in pairs}) == 1
    assert sum(one == other for one, other in pairs) == (1 if as_ == "threads" else 0)


def _call_until_lost(counter: Counter, path: str) -> None:
    counter.get()
    note(path, "called")
    try:
        while True:
            counter.get()
    except rw.ServiceLost as error:
        note(path, error.cause)


def test_callers_of_a_service_that_ended_with_the_workers_beside_it_are_told_so(tmp_path: Path) -> None:
    # They were told that it is gone, "and nobody saw how".
    path, gate = str(tmp_path / "notes"), str(tmp_path / "gate")
    program = rw.Program("together")
    nodes = {"counter": rw.Service(Counter), "worker": rw.Worker(wait_for_file, gate)}
    handles = program.add(rw.Colocate(nodes, as_="threads"), name="host")
    program.add(rw.Worker(_call_until_lost, handles["counter"], path), name="visitor")
    with program.launch() as running:
        wait_until(lambda: noted(path))
        Path(gate).touch()
        assert running.wait(120)
    words = "it shared the process 'host' with workers, which have completed, and ended with them"
    assert noted(path) == ["called", *words.split()]


def test_colocated_threads_die_and_come_back_as_one(tmp_path: Path) -> None:
    program = rw.Program("together")
    nodes = {"one": rw.Service(Counter), "two": rw.Service(Counter)}
    program.add(rw.Colocate(nodes, as_="threads"), name="host", restart=rw.Restart(backoff_s=0.01))
    with program.launch() as running:
        one, two = running.client("one"), running.client("two")
        assert one.whoami() == two.whoami()
        kill(pid_of(running, "one"))
        wait_until(lambda: one.whoami()[1] == two.whoami()[1] == 1)
        assert one.whoami() == two.whoami()
        running.stop()


@each_mode
def test_a_cache_answers_for_its_service_until_the_answer_is_old(mode: Mode) -> None:
    program = rw.Program("cached")
    counter = program.add(rw.Service(Counter), name="counter")
    program.add(rw.Cache(counter, ttl_s=0.3, only=["get"]), name="near")
    with program.launch(mode) as running:
        near, counter_there = running.client("near"), running.client("counter")
        assert near.get() == 0
        assert near.add(5) == 5
        assert near.get() == 0, "what is in memory"
        wait_until(lambda: near.get() == 5)
        for _ in range(50):
            near.get()
        assert status_of(running, "counter").calls_done < 20
        with pytest.raises(ValueError, match="through the cache"):
            near.fail("through the cache")
        assert counter_there.get() == 5


def test_a_pool_node_maps_for_all_who_have_its_handle(tmp_path: Path) -> None:
    path, done = str(tmp_path / "notes"), tmp_path / "done"
    program = rw.Program("pooled")
    pool = program.add(rw.PoolNode(2), name="pool")
    program.add(rw.Worker(_map_there, pool, path, done), replicas=2)
    with program.launch() as running:
        assert running.client("pool").apply(square, (7,)) == 49
        assert list(running.client("pool").imap(square, [1, 2, 3])) == [1, 4, 9]
        done.touch()  # with its workers, the program ends, and so does its pool
        assert running.wait(120)
    assert noted(path) == ["285", "285"]


def _map_there(pool: Any, path: str, done: Path) -> None:
    note(path, sum(pool.map(square, range(10))))
    wait_until(done.exists)


def test_a_node_may_have_a_pool_of_its_own(tmp_path: Path) -> None:
    path = str(tmp_path / "notes")
    program = rw.Program("nested")
    program.add(rw.Worker(_map_here, path))
    program.launch().wait(120)
    assert noted(path) == ["285"]


def _map_here(path: str) -> None:
    with rw.Pool(2) as pool:
        note(path, sum(pool.map(square, range(10))))


def _note_rendezvous(path: str) -> None:
    node = rw.current_node()
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK")
    note(path, ":".join([str(node.generation), *(os.environ[name] for name in names)]))
    if node.generation == 0 and node.replica == 1:
        wait_until(lambda: len(noted(path)) == 3)
        raise RuntimeError("one rank fails")
    if node.generation == 0:
        rw.wait_for_stop()


def test_all_ranks_meet_at_one_port_and_at_a_new_one_after_a_restart(tmp_path: Path) -> None:
    path = str(tmp_path / "notes")
    program = rw.Program("ranks")
    program.add(rw.RankGroup(_note_rendezvous, 3, path), name="trainer", restart=rw.Restart(backoff_s=0.01))
    with program.launch() as running:
        assert running.wait(120)
    lines = [line.split(":") for line in noted(path)]
    for generation in ("0", "1"):
        ranks = sorted(line for line in lines if line[0] == generation)
        assert [(line[1], line[2], line[5]) for line in ranks] == [("0", "3", "0"), ("1", "3", "1"), ("2", "3", "2")]
        assert len({(line[3], line[4]) for line in ranks}) == 1
    assert len({line[4] for line in lines}) == 2


def _all_reduce(path: str) -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    values = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(values)
    note(path, f"{dist.get_world_size()}:{values.item()}")
    dist.destroy_process_group()


@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch")
def test_ranks_reduce_with_torch_without_an_address_in_user_code(tmp_path: Path) -> None:
    path = str(tmp_path / "notes")
    program = rw.Program("ranks")
    program.add(rw.RankGroup(_all_reduce, 2, path), name="trainer", preload=["torch"])
    program.launch().wait(120)
    assert noted(path) == ["2:3.0", "2:3.0"]


class Rows:
    def __init__(self, database: sqlite3.Connection, lock: Any, counter: Counter) -> None:
        self.database, self.lock, self.counter = database, lock, counter

    def one(self) -> int:
        with self.lock:
            return self.database.execute("select 1").fetchone()[0] + self.counter.add(1)


class ClosedWithItsService(sqlite3.Connection):
    def __del__(self) -> None:
        self.close()


@each_mode
def test_deferred_arguments_are_built_where_they_are_needed(mode: Mode) -> None:
    program = rw.Program("deferred")
    counter = program.add(rw.Service(Counter, 40), name="counter")
    connect = functools.partial(sqlite3.connect, check_same_thread=False, factory=ClosedWithItsService)
    rows = rw.Service(Rows, rw.Deferred(connect, ":memory:"), lock=rw.Deferred(threading.Lock), counter=counter)
    program.add(rows, name="rows")
    with program.launch(mode) as running:
        assert running.client("rows").one() == 42


@dataclasses.dataclass(frozen=True)
class Links:
    counters: dict[str, list[Counter]]


def _use_links(links: Links, path: str) -> None:
    note(path, sum(counter.add(1) for counters in links.counters.values() for counter in counters))


@each_mode
def test_handles_inside_of_containers_and_dataclasses_arrive_as_clients(mode: Mode, tmp_path: Path) -> None:
    path = str(tmp_path / "notes")
    program = rw.Program("deep")
    shards: Any = [program.add(rw.Service(Counter, start), name=f"shard-{start}") for start in (10, 20)]
    program.add(rw.Worker(_use_links, Links({"shards": shards}), path))
    program.launch(mode).wait(120)
    assert noted(path) == ["32"]


class Asked:
    """Half of a circle."""

    def __init__(self, other: Any, name: str) -> None:
        self.other, self.name = other, name

    def ask(self, depth: int) -> str:
        return self.name + (self.other.ask(depth - 1) if depth else "")


@each_mode
def test_a_call_that_comes_back_to_its_own_chain_is_admitted(mode: Mode) -> None:
    program = rw.Program("circle")
    right = program.declare("right")
    left = program.add(rw.Service(Asked, right, "l"), name="left")
    program.add(rw.Service(Asked, left, "r"), name="right")
    with program.launch(mode) as running, rw.deadline(PATIENCE_S):
        assert running.client("left").ask(4) == "lrlrl"


@each_mode
def test_streams_and_concurrent_methods_work_across_nodes(mode: Mode) -> None:
    program = rw.Program("streams")
    program.add(rw.Service(Gate), name="gate")
    with program.launch(mode) as running:
        gate = running.client("gate")
        streams: list[Iterator[int]] = [gate.count(100) for _ in range(5)]
        assert list(zip(*streams, strict=True)) == [(number,) * 5 for number in range(100)]
        assert list(gate.count_alone(100)) == list(range(100))
        waiting = [gate.pass_through.future() for _ in range(5)]
        gate.open()
        assert [future.result(120) for future in waiting] == ["passed"] * 5


class Diary:
    def __init__(self) -> None:
        self.entries: list[int] = []

    def write(self, number: int) -> None:
        self.entries.append(number)

    def read(self) -> list[int]:
        return self.entries


@pytest.mark.parametrize("seconds", [None, 20.0])
@pytest.mark.parametrize("way", ["future", "send"])
@each_mode
def test_calls_of_one_thread_run_in_their_order_and_take_no_threads(
    mode: Mode, way: str, seconds: float | None
) -> None:
    program = rw.Program("order")
    program.add(rw.Service(Diary), name="diary")
    with program.launch(mode) as running, contextlib.ExitStack() as stack:
        diary = running.client("diary")
        num_threads = threading.active_count()
        if seconds:
            stack.enter_context(rw.deadline(seconds))
        write = getattr(diary.write, way)  # the first ones are made before the service is there
        made = [write(number) for number in range(2000)]
        assert threading.active_count() < num_threads + 20
        if way == "future":
            assert [future.result(120) for future in made] == [None] * 2000
        wait_until(lambda: len(diary.read()) == 2000)
        assert diary.read() == list(range(2000))
