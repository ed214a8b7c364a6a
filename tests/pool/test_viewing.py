"""What a pool shows of itself: pure where it can be, and of a pool whose workers run, fail and are killed."""

from __future__ import annotations

import functools
import gc
import os
import signal
import threading
import time
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ropewalk as rw
from ropewalk.control.launchers import Launcher, LauncherGone, RequestFailed, find_launchers
from ropewalk.control.parts import below_wholes
from ropewalk.control.server import Act, ActionDone, Look, Stacks, StacksAre, Stop, ViewIs
from ropewalk.control.view import View
from ropewalk.errors import TaskCancelled
from ropewalk.pool.packing import _label
from ropewalk.pool.status import PoolStatus, WorkerStatus
from ropewalk.pool.viewing import pool_view, processes_of
from ropewalk.supervision.failure import DeathRecord
from tests.patience import PATIENCE_S, wait_until

pytestmark = pytest.mark.usefixtures("shared_session")


def worker(rank: int, state: str = "running", **facts: Any) -> WorkerStatus:
    return WorkerStatus(
        name=f"pool-1.{rank}", pid=7, host="here", state=state, task=3, num_done=5, memory_bytes=10, cpu_s=1.0, **facts
    )


def status(*workers: WorkerStatus, **facts: Any) -> PoolStatus:
    counts = {"queued": 4, "running": 2, "done": 5, "failed": 1, "retried": 1, "num_deaths": 0, "deaths": ()}
    return PoolStatus(name="pool-1", state="running", workers=workers, events=(), **{**counts, **facts})  # type: ignore[arg-type]


def view_of(status: PoolStatus) -> View:
    return pool_view(status, "id", 1.0, 3.0, 2.0, panels={})


def test_a_view_has_the_counts_and_what_is_left() -> None:
    view = pool_view(status(worker(0), worker(1)), "id", 1.0, 3.0, 2.0, panels={"tasks": {}})
    assert (view.progress, view.left_s) == (0.5, 3.0)
    facts = {"queued": 4, "running": 2, "done": 5, "failed": 1, "retried": 1, "tasks_per_s": 2.0, "deaths": 0}
    assert view.facts == {**facts, "workers": 2, "hosts": 1, "memory_bytes": 20}
    assert view.panels == {"tasks": {}} and view.offers == ("tasks", "stream")


def test_a_pool_that_was_terminated_is_not_done() -> None:
    cut_off = status(queued=0, running=0, dropped=6)
    assert view_of(replace(cut_off, state="closed")).progress == 0.5
    assert view_of(cut_off).progress == 1.0  # those that its user cancelled are none of its tasks any more
    assert view_of(cut_off).facts["dropped"] == 6 and "dropped" not in view_of(status()).facts


def test_a_client_of_a_pool_that_ends_learns_what_became_of_its_tasks() -> None:
    with rw.Pool(1, name="short") as pool, launcher_of(pool).connect() as conversation:
        pool.map(square, range(3))
        pool.map_async(time.sleep, [PATIENCE_S] * 7, chunksize=1)
        wait_until(lambda: conversation.ask(Look(), ViewIs).view, wanted=lambda view: view.facts["running"] != 0)
        pool.terminate()
        pool.join()
        due, last = time.monotonic() + PATIENCE_S, None
        while last is None and time.monotonic() < due:
            last = conversation.last_view()
    assert last
    assert (last.state, last.progress, last.facts["done"], last.facts["dropped"]) == ("closed", 0.3, 3, 7)


def test_what_is_not_known_is_not_said() -> None:
    nothing = status(queued=0, running=0, done=0, failed=0)
    assert pool_view(nothing, "id", 1.0, 3.0, 0.0, panels={}).progress is None
    assert pool_view(status(), "id", 1.0, 3.0, 0.0, panels={}).left_s is None


@pytest.mark.parametrize(
    ("doing_s", "expected_s", "others_end", "is_straggler"),
    [
        (9.0, 1.0, True, True),
        (2.9, 1.0, True, False),
        (0.9, 0.1, True, False),
        (9.0, None, True, False),
        (9.0, 1.0, False, False),
    ],
)
def test_a_worker_whose_task_takes_far_longer_than_others_is_a_straggler(
    doing_s: float, expected_s: float | None, others_end: bool, is_straggler: bool
) -> None:
    facts: dict[str, Any] = {"doing_s": doing_s, "expected_s": expected_s, "others_end": others_end}
    (shown,) = processes_of(status(worker(0, doing="f 3", **facts)))
    assert (shown.straggler, shown.doing, shown.doing_s) == (is_straggler, "f 3", doing_s)


def test_of_workers_that_wait_for_each_other_none_is_slower_than_the_others() -> None:
    # All workers of a pool that was deadlocked were "slower than the others".
    late = [worker(rank, doing_s=9.0 + rank, expected_s=1.0, others_end=rank > 0) for rank in range(2)]
    assert [each.straggler for each in processes_of(status(*late, worker(2, "idle")))] == [False] * 3
    busy = worker(2, doing_s=0.5, expected_s=1.0)
    assert [each.straggler for each in processes_of(status(*late, busy))] == [False, True, False]


def test_names_are_unique_though_a_worker_and_its_successor_are_both_there() -> None:
    shown = processes_of(status(worker(0, "stopping"), worker(0), worker(0, "stopping")))
    assert [each.name for each in shown] == ["pool-1.0", "pool-1.0 (leaves)", "pool-1.0 (leaves 2)"]


def test_deaths_are_restarts_with_the_last_cause() -> None:
    deaths = tuple(DeathRecord(name="pool-1.0", host="here", pid=pid, exit_code=pid) for pid in (1, 2))
    shown, other = processes_of(status(worker(0), worker(1), deaths=deaths))
    assert (shown.restarts, other.restarts, other.last_cause) == (2, 0, "")
    assert shown.last_cause == deaths[1].describe()


def test_a_function_is_called_by_the_name_that_its_author_knows() -> None:
    def inner() -> None: ...

    assert _label(inner) == "inner"
    assert _label(functools.partial(functools.partial(inner))) == "inner"
    assert _label(Path.rename) == "Path.rename" and _label(threading.Event) == "Event"
    named = functools.partial(inner)
    vars(named)["__name__"] = "outer"
    assert _label(named) == "outer"


# --- real pools -------------------------------------------------------------------------------------------------------


def square(number: int) -> int:
    return number * number


def wait_for(path: str) -> str:
    Path(f"{path}.began").touch()
    while not os.path.exists(path):
        time.sleep(0.005)
    return path


def fail(number: int) -> int:
    raise ValueError(number)


def launcher_of(pool: rw.Pool, name: str = "") -> Launcher:
    """What is announced of a pool, or of one in its workers."""
    due = time.monotonic() + PATIENCE_S
    while True:
        found = [each for each in find_launchers([pool.session.folder.parent]) if each.name == (name or pool.name)]
        if found:
            return found[0]
        assert time.monotonic() < due
        time.sleep(0.02)


def test_a_look_from_another_terminal_shows_the_tasks_and_a_worker_can_be_killed(tmp_path: Path) -> None:
    gate = str(tmp_path / "gate")
    with rw.Pool(2, name="seen") as pool, (launcher := launcher_of(pool)).connect() as conversation:

        def look(**panels: int) -> View:
            return conversation.ask(Look(panels), ViewIs).view

        assert (launcher.kind, launcher.pid) == ("pool", os.getpid())
        assert look(stream=0).panels["stream"]["tasks"] == []  # from now on it is recorded
        assert pool.map(square, range(20), chunksize=5) == [number * number for number in range(20)]
        with pytest.raises(ValueError, match="7"):
            pool.apply(fail, (7,))
        rows = look(stream=0).panels["stream"]["tasks"]
        assert sum(row[4] for row in rows if row[1] == "square") == 20
        assert {(row[1], row[5]) for row in rows} == {("square", "ok"), ("fail", "failed")}
        assert all(row[0] in ("seen.0", "seen.1") and row[2] <= row[3] for row in rows)

        waiting = pool.map_async(wait_for, [gate])
        wait_until(lambda: os.path.exists(f"{gate}.began"))
        view = wait_until(look, wanted=lambda view: any(each.doing for each in view.processes))
        (busy,) = [each for each in view.processes if each.doing]
        assert (busy.doing, busy.state) == ("wait_for 0", "running")
        counts = look(tasks=0).panels["tasks"]
        assert counts == {"queued": 0, "running": 1, "done": 21, "failed": 0, "retried": 0}
        assert counts == {name: getattr(pool.status(), name) for name in counts}
        stacks = conversation.ask(Stacks(busy.name, PATIENCE_S), StacksAre, PATIENCE_S).stacks
        assert "in wait_for" in stacks[busy.name]

        cursor = look(stream=0).panels["stream"]["cursor"]
        conversation.ask(Act("kill", busy.name), ActionDone)
        view = wait_until(look, wanted=lambda view: view.facts["deaths"] == 1)
        assert busy.name in view.last_failure and "SIGKILL" in view.last_failure
        death = next(event for event in view.events if event.kind == "death")
        assert death.process == busy.name and view.started <= death.at <= view.at
        (died,) = look(stream=cursor).panels["stream"]["tasks"]
        assert (died[0], died[1], died[5]) == (busy.name, "wait_for", "died")
        Path(gate).touch()
        assert waiting.get(PATIENCE_S) == [gate]
        with pytest.raises(RequestFailed, match=r"pool seen has no worker 'seen\.9'"):
            conversation.ask(Act("kill", "seen.9"), ActionDone)
    due = time.monotonic() + PATIENCE_S
    while launcher.file.exists():  # the pool does not wait for its withdrawal
        assert time.monotonic() < due
    with pytest.raises(LauncherGone), launcher.connect():
        pass


def test_a_pool_that_is_stopped_from_another_terminal_ends_its_tasks(tmp_path: Path) -> None:
    pool = rw.Pool(1, name="stopped")
    waiting = pool.map_async(wait_for, [str(tmp_path / "never")])
    with launcher_of(pool).connect() as conversation:
        view = conversation.ask(Stop(None), ViewIs, PATIENCE_S).view
    assert view.state == "closed" and view.has_ended
    with pytest.raises(TaskCancelled):
        waiting.get(PATIENCE_S)
    pool.join()


def keep_going(file: str) -> None:
    """Answers SIGTERM by writing a file after a while, as a handler that saves something does."""

    def save(*_: object) -> None:
        time.sleep(1.5)  # longer than the usual grace
        Path(f"{file}.saved").touch()
        os._exit(0)

    signal.signal(signal.SIGTERM, save)
    Path(f"{file}.began").touch()
    while True:
        time.sleep(60)


def test_a_pool_that_is_stopped_with_a_grace_gives_it_to_its_workers(tmp_path: Path) -> None:
    pool = rw.Pool(1, name="patient")
    waiting = pool.apply_async(keep_going, (str(tmp_path / "it"),))
    with launcher_of(pool).connect() as conversation:
        wait_until(lambda: conversation.ask(Look(), ViewIs).view, wanted=lambda _: (tmp_path / "it.began").exists())
        conversation.ask(Stop(PATIENCE_S), ViewIs, 2 * PATIENCE_S)
    assert (tmp_path / "it.saved").exists()
    with pytest.raises(TaskCancelled):
        waiting.get(PATIENCE_S)
    pool.join()


def test_nothing_is_recorded_while_nobody_looks_at_the_stream() -> None:
    with rw.Pool(1) as pool:
        pool.map(square, range(3))
        assert pool._dispatcher.tasks.stream is None
        pool._dispatcher.stream_since(0)
        pool.map(square, range(3))
        assert pool._dispatcher.stream_since(0)["cursor"] > 0
        pool._dispatcher.tasks.stream.until = 0.0  # type: ignore[union-attr]  # ten seconds later
        pool.map(square, range(3))
        assert pool._dispatcher.tasks.stream is None


def test_a_pool_that_nobody_holds_is_collected_though_it_is_announced() -> None:
    pool = rw.Pool(1, name="dropped")
    launcher_of(pool)
    gone = weakref.ref(pool)
    with pytest.warns(ResourceWarning, match="unclosed running multiprocessing pool"):
        del pool
    gc.collect()
    assert gone() is None


def square_in_a_nested_pool(go: str) -> list[int]:
    with rw.Pool(1, name="nested") as pool:
        squares = pool.map(square, range(3))
        while not Path(go).exists():
            time.sleep(0.01)
        return squares


def test_a_pool_in_a_worker_is_announced_as_a_part_of_that_of_the_worker(tmp_path: Path) -> None:
    with rw.Pool(1, name="outer") as pool:
        waiting = pool.apply_async(square_in_a_nested_pool, (str(tmp_path / "go"),))
        try:
            outer, nested = (launcher_of(pool, name) for name in ("outer", "nested"))
            views: list[View] = []
            for launcher in (outer, nested):
                with launcher.connect() as conversation:
                    views.append(conversation.ask(Look(), ViewIs).view)
        finally:
            (tmp_path / "go").touch()
        assert waiting.get() == [0, 1, 4]
        assert (outer.within, nested.within, nested.pid) == ("", "outer.0", pool.status().workers[0].pid)
        assert [(view.name, depth) for view, depth in below_wholes(views[::-1])] == [("outer", 0), ("nested", 1)]


def say(words: str) -> None:
    print(words, flush=True)


def outputs_of(pool: rw.Pool, num_lines: int = 1) -> set[str]:
    """What the workers of a pool have printed, as soon as there is as much."""
    files = pool._target.log_files().values()

    def printed() -> list[str]:
        return [line for file in files if file.exists() for line in file.read_text().splitlines()]

    wait_until(lambda: len(printed()) >= num_lines)
    return set(printed())


def test_output_of_two_pools_of_one_name_is_kept_apart() -> None:
    # The workers of both wrote into one file, so that `ropewalk logs` showed the lines of both for each of them.
    with rw.Pool(1, name="namesake") as first, rw.Pool(1, name="namesake") as second:
        first.apply(say, ("of the first",))
        second.apply(say, ("of the second",))
        assert outputs_of(first) == {"of the first"} and outputs_of(second) == {"of the second"}


def say_in_a_nested_pool(words: str, met: tuple[str, ...]) -> set[str]:
    with rw.Pool(1, name="nested") as pool:
        pool.apply(say, (words,))
        Path(met[0]).touch()
        wait_until(lambda: all(map(os.path.exists, met)))
        return outputs_of(pool)


def test_output_of_pools_of_one_name_in_two_workers_is_kept_apart(tmp_path: Path) -> None:
    here, there = str(tmp_path / "here"), str(tmp_path / "there")
    with rw.Pool(2, name="outer") as pool:
        meetings = [("one", (here, there)), ("other", (there, here))]
        assert pool.starmap(say_in_a_nested_pool, meetings, chunksize=1) == [{"one"}, {"other"}]
