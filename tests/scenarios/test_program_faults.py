"""Programs in which nodes raise, die, hang or are killed: it is told by name, and nothing hangs."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any, Literal

import psutil
import pytest

import ropewalk as rw
from tests.patience import PATIENCE_S, wait_until
from tests.scenarios.launchers import kill, suspend
from tests.scenarios.services import (
    MODES,
    Counter,
    OddError,
    add_many,
    in_thread,
    pid_of,
    serve_until_stopped,
    status_of,
)
from tests.scenarios.tasks import note, noted, wait_for_file

pytestmark = pytest.mark.usefixtures("shared_session")

Mode = Literal["processes", "threads"]
each_mode = pytest.mark.parametrize("mode", MODES)


# --- a service that raises ---


class Unmakeable:
    def __init__(self) -> None:
        raise OSError(28, "no space for a table")

    def add(self, number: int) -> int:
        return number


class FailsAtWork(Counter):
    def run(self) -> None:
        raise ZeroDivisionError("while working")


@each_mode
def test_a_service_that_cannot_be_constructed_fails_the_program_with_its_own_exception(mode: Mode) -> None:
    program = rw.Program("unmakeable")
    service = program.add(rw.Service(Unmakeable), name="table")
    program.add(rw.Worker(add_many, service, 3))
    with pytest.raises(rw.ProgramFailed, match="table raised OSError") as caught:
        program.launch(mode).wait(120)
    assert caught.value.node == "table"
    assert isinstance(caught.value.__cause__, OSError) and caught.value.__cause__.errno == 28
    assert 'raise OSError(28, "no space for a table")' in _text(caught.value.__cause__)
    assert "no space for a table" not in caught.value.last_output, "the traceback is told once"


@each_mode
def test_a_service_that_raises_in_a_call_tells_the_caller_and_lives_on(mode: Mode) -> None:
    program = rw.Program("raises")
    program.add(rw.Service(Counter, 3), name="counter")
    with program.launch(mode) as running:
        counter = running.client("counter")
        with pytest.raises(ValueError, match="not this") as caught:
            counter.fail("not this")
        assert "in fail" in _text(caught.value) and "counter" in _text(caught.value)
        with pytest.raises(OddError) as odd:
            counter.fail_oddly(12)
        assert (odd.value.code, odd.value.where) == (12, "there")
        assert counter.get() == 3
        assert status_of(running, "counter").restarts == 0


@each_mode
def test_a_service_that_raises_in_its_run_fails_the_program(mode: Mode) -> None:
    program = rw.Program("works")
    program.add(rw.Service(FailsAtWork), name="table")
    program.add(rw.Worker(serve_until_stopped))
    with pytest.raises(rw.ProgramFailed, match="table raised ZeroDivisionError: while working") as caught:
        program.launch(mode).wait(120)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


# --- a worker that raises ---


def work_and_raise() -> None:
    print("the last words", file=sys.stderr)
    raise OddError(5, where="work")


@each_mode
def test_a_worker_that_raises_fails_the_program_with_its_name_cause_and_last_output(mode: Mode) -> None:
    program = rw.Program("fails")
    program.add(rw.Service(Counter), name="counter")
    program.add(rw.Worker(work_and_raise), name="miner")
    with pytest.raises(rw.ProgramFailed) as caught:
        program.launch(mode).wait(120)
    error = caught.value
    assert (error.node, error.replica) == ("miner", 0)
    assert "OddError: code 5 at work" in error.reason and "miner" in str(error)
    assert isinstance(error.__cause__, OddError) and error.__cause__.code == 5
    assert "in work_and_raise" in _text(error.__cause__)
    if mode == "processes":
        assert "the last words" in error.last_output


@each_mode
def test_leaving_the_block_of_a_program_that_failed_raises_its_failure(mode: Mode) -> None:
    program = rw.Program("fails")
    program.add(rw.Worker(work_and_raise), name="miner")
    with pytest.raises(rw.ProgramFailed, match="miner"), program.launch(mode) as running:
        wait_until(lambda: running.status().state == "failed")


def call_until_lost(counter: Counter) -> None:
    while True:
        counter.add(1)


@each_mode
def test_the_first_failure_is_the_one_that_is_reported_and_not_what_followed_from_it(mode: Mode) -> None:
    program = rw.Program("first")
    table = program.add(rw.Service(FailsSoon), name="table")
    for number in range(2):
        program.add(rw.Worker(call_until_lost, table), name=f"caller-{number}")
    with pytest.raises(rw.ProgramFailed) as caught:
        program.launch(mode).wait(120)
    assert caught.value.node == "table"
    assert isinstance(caught.value.__cause__, KeyError)


class FailsSoon(Counter):
    def run(self) -> None:
        wait_until(lambda: self.value > 10)
        raise KeyError("the first")


@pytest.mark.parametrize("code", [0, 3])
def test_a_node_that_exits_by_itself_is_judged_by_its_exit_code(code: int) -> None:
    program = rw.Program("exits")
    program.add(rw.Worker(_exit, code), name="leaver")
    running = program.launch()
    if code == 0:
        assert running.wait(120)
        return
    with pytest.raises(rw.ProgramFailed, match="leaver exited with code 3"):
        running.wait(120)


def _exit(code: int) -> None:
    raise SystemExit(code)


def test_a_node_that_leaves_by_os_exit_fails_the_program_with_its_exit_code() -> None:
    program = rw.Program("gone")
    program.add(rw.Worker(os._exit, 9), name="leaver")
    with pytest.raises(rw.ProgramFailed, match=r"node leaver exited with code 9 after .*; it printed nothing"):
        program.launch().wait(120)


# --- SIGKILL, in both directions ---


def sleep_at(counter: Counter, path: str) -> None:
    try:
        counter.sleep(3600, path)
    except rw.ServiceLost as error:
        note(path, f"{error.service}:{'SIGKILL' in error.cause}:{error.started}")


def test_a_caller_whose_service_is_killed_in_the_call_is_told_at_once_who_and_how(tmp_path: Path) -> None:
    path = str(tmp_path / "notes")
    program = rw.Program("killed")
    counter = program.add(rw.Service(Counter), name="counter", essential=False)
    program.add(rw.Worker(sleep_at, counter, path))
    with program.launch() as running:
        wait_until(lambda: noted(path))
        kill(pid_of(running, "counter"))
        assert running.wait(120)
    assert noted(path) == ["sleeps", "counter:True:True"]


def test_an_essential_service_that_is_killed_fails_the_program_though_its_callers_fail_too(tmp_path: Path) -> None:
    path = str(tmp_path / "notes")
    program = rw.Program("killed")
    counter = program.add(rw.Service(Counter), name="counter")
    program.add(rw.Worker(_sleep_there, counter, path))
    running = program.launch()
    wait_until(lambda: noted(path))
    kill(pid_of(running, "counter"))
    with pytest.raises(rw.ProgramFailed, match=r"node counter .*SIGKILL") as caught:
        running.wait(120)
    assert caught.value.node == "counter" and caught.value.__cause__ is None


def _sleep_there(counter: Counter, path: str) -> None:
    counter.sleep(3600, path)


def call_once_asleep(counter: Counter, path: str) -> None:
    if rw.current_node().generation == 0:
        counter.sleep(0.3, path)
        time.sleep(60)
    note(path, f"again:{rw.current_node().generation}:{counter.add(1)}")


def test_a_service_goes_on_when_its_caller_is_killed_in_the_call(tmp_path: Path) -> None:
    path = str(tmp_path / "notes")
    program = rw.Program("killed")
    counter = program.add(rw.Service(Counter), name="counter")
    program.add(rw.Worker(call_once_asleep, counter, path), name="caller", restart="on_failure")
    with program.launch() as running:
        wait_until(lambda: noted(path))
        kill(pid_of(running, "caller"))
        assert running.wait(120)
    assert noted(path) == ["sleeps", "again:1:1"]


def test_all_clients_of_a_killed_service_are_told_also_those_with_futures_and_streams(tmp_path: Path) -> None:
    path = str(tmp_path / "notes")
    program = rw.Program("killed")
    program.add(rw.Service(Counter), name="counter", essential=False)
    program.add(rw.Worker(serve_until_stopped))
    with program.launch() as running:
        counter = running.client("counter")
        waiting, outcome = in_thread(lambda: counter.sleep(3600, path))
        wait_until(lambda: noted(path))
        futures = [counter.get.future() for _ in range(5)]
        kill(pid_of(running, "counter"))
        for future in futures:
            with pytest.raises(rw.ServiceLost, match="SIGKILL"):
                future.result(120)
        waiting.join(120)
        assert isinstance(outcome[0], rw.ServiceLost)
        with pytest.raises(rw.ServiceLost, match="not started again"):
            counter.get()
        running.stop()


def test_a_killed_worker_without_a_restart_rule_fails_the_program(tmp_path: Path) -> None:
    program = rw.Program("killed")
    program.add(rw.Worker(serve_until_stopped), name="idler", replicas=2)
    running = program.launch()
    running.wait_ready(120)
    kill(pid_of(running, "idler", 1))
    with pytest.raises(rw.ProgramFailed, match=r"node idler\.1 .*SIGKILL") as caught:
        running.wait(120)
    assert (caught.value.node, caught.value.replica) == ("idler", 1)


# --- the agent that hosts the nodes ---


def _agent_of(pid: int) -> int:
    """The agent above a node's process."""
    return next(
        above.pid for above in psutil.Process(pid).parents() if "ropewalk.processes.agent_main" in above.cmdline()
    )


def test_nodes_that_go_with_their_agent_are_started_again_by_a_new_one() -> None:
    program = rw.Program("moved")
    program.add(rw.Service(Counter), name="counter", restart="on_failure")
    with program.launch() as running:
        counter = running.client("counter")
        pid, _ = counter.whoami()
        kill(_agent_of(pid))
        with rw.deadline(PATIENCE_S):
            wait_until(lambda: counter.whoami()[1] == 1)
        assert "went with its host" in status_of(running, "counter").last_cause


def test_nodes_that_go_with_their_agent_and_have_no_restart_rule_fail_the_program() -> None:
    program = rw.Program("moved")
    program.add(rw.Service(Counter), name="counter")
    running = program.launch()
    kill(_agent_of(running.client("counter").whoami()[0]))
    with pytest.raises(rw.ProgramFailed, match=r"node counter went with its host: the agent on .* is gone"):
        running.wait(120)


# --- crash loops ---


class Fragile:
    def __init__(self, path: str) -> None:
        note(path, "made")
        raise LookupError(f"attempt {len(noted(path))}")

    def get(self) -> int:
        return 0


def test_a_crash_loop_ends_with_its_first_traceback_and_the_budget(tmp_path: Path) -> None:
    path = str(tmp_path / "notes")
    program = rw.Program("loop")
    rule = rw.Restart("on_failure", max_restarts=2, backoff_s=0.01)
    service = program.add(rw.Service(Fragile, path), name="fragile", restart=rule)
    program.add(rw.Worker(_get, service))
    with pytest.raises(rw.ProgramFailed) as caught:
        program.launch().wait(120)
    error = caught.value
    assert len(noted(path)) == 3
    assert error.node == "fragile" and len(error.deaths) == 3
    assert isinstance(error.__cause__, LookupError) and str(error.__cause__) == "attempt 1"
    assert "attempt 1" in error.reason and "attempt 3" in str(error)
    assert "2" in str(error) and "60" in str(error), "the budget"


def _get(service: Any) -> None:
    service.get()


def die_in_calls(counter: Counter) -> None:
    while True:
        try:
            counter.die()
        except rw.ServiceLost as error:
            if not error.started:
                return


def test_calls_that_kill_their_service_each_time_end_when_its_budget_is_spent() -> None:
    program = rw.Program("loop")
    rule = rw.Restart("on_failure", max_restarts=2, backoff_s=0.01)
    counter = program.add(rw.Service(Counter), name="counter", restart=rule, essential=False)
    program.add(rw.Worker(die_in_calls, counter))
    with program.launch() as running:
        assert running.wait(120)
        assert status_of(running, "counter").restarts == 2


# --- hung services ---


@each_mode
def test_a_caller_with_a_deadline_does_not_wait_for_a_service_that_sleeps(mode: Mode, tmp_path: Path) -> None:
    path = str(tmp_path / "gate")
    program = rw.Program("hung")
    program.add(rw.Service(Counter), name="counter")
    program.add(rw.Worker(serve_until_stopped))
    with program.launch(mode) as running:
        counter = running.client("counter")
        counter.get()
        with rw.deadline(0.2), pytest.raises(rw.DeadlineExceeded, match=r"counter\.sleep_until"):
            counter.sleep_until(path)
        with rw.deadline(0.1), pytest.raises(rw.DeadlineExceeded, match=r"counter\.add"):
            counter.add(1)
        Path(path).touch()  # it was asleep until now
        assert counter.get() == 0, "a call that was given up while it waited does not run"
        running.stop()


def test_a_caller_with_a_deadline_does_not_wait_for_a_service_that_was_stopped_by_a_signal() -> None:
    program = rw.Program("hung")
    program.add(rw.Service(Counter), name="counter")
    program.add(rw.Worker(serve_until_stopped))
    with program.launch() as running:
        counter = running.client("counter")
        counter.get()
        pid = pid_of(running, "counter")
        suspend(pid)
        try:
            with rw.deadline(0.2):
                with pytest.raises(rw.DeadlineExceeded):
                    counter.add(1)
            with rw.deadline(0.2), pytest.raises(TimeoutError):
                counter.add.future(1).result()
            assert status_of(running, "counter").state == "running"
        finally:
            os.kill(pid, signal.SIGCONT)
        assert counter.get() <= 2, "they may or may not have had their effect"
        running.stop()


def test_stopping_a_program_with_a_service_that_was_stopped_by_a_signal_kills_it_after_its_grace() -> None:
    program = rw.Program("hung")
    program.add(rw.Service(Counter), name="counter")
    running = program.launch()
    running.wait_ready(120)
    suspend(pid_of(running, "counter"))
    running.stop(grace_s=0.3)


def call_with_deadline(counter: Counter, path: str) -> None:
    wait_for_file(path)
    try:
        with rw.deadline(0.2):
            counter.add(1)
    except rw.DeadlineExceeded:
        Path(f"{path}.exceeded").touch()
        raise


def test_a_deadline_that_a_worker_does_not_handle_fails_the_program_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "gate"
    program = rw.Program("hung")
    counter = program.add(rw.Service(Counter), name="counter")
    program.add(rw.Worker(call_with_deadline, counter, str(path)), name="hasty")
    running = program.launch()
    running.wait_ready(120)
    pid = pid_of(running, "counter")
    suspend(pid)
    path.touch()
    try:
        wait_for_file(f"{path}.exceeded")
        os.kill(pid, signal.SIGCONT)
        with pytest.raises(rw.ProgramFailed, match=r"node hasty raised .*DeadlineExceeded") as caught:
            running.wait(120)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    assert isinstance(caught.value.__cause__, rw.DeadlineExceeded)


def _text(error: BaseException) -> str:
    """The error with its remote traceback."""
    return "".join(traceback.format_exception(error))
