"""A running program as its user sees it, in threads of this process; `scenarios` has whole programs."""

from __future__ import annotations

import stat
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ropewalk as rw
from ropewalk.control.server import ControlServer
from ropewalk.errors import FileNotTrusted
from ropewalk.processes import output
from ropewalk.program import running as running_module
from ropewalk.program.observing import StatusRows
from ropewalk.program.running import RunningProgram
from ropewalk.transport.serialization import dumps
from tests.forked_process import ForkedProcess
from tests.patience import PATIENCE_S, wait_until


class Store:
    def __init__(self) -> None:
        self.value = 0

    def add(self, number: int) -> int:
        self.value += number
        return self.value


class Kept(Store):
    def state_dict(self) -> int:
        return self.value

    def load_state_dict(self, state: int) -> None:
        self.value = state


GATE = threading.Event()


def wait_at_gate() -> None:
    GATE.wait(PATIENCE_S)


def wait_here() -> None:
    rw.wait_for_stop(PATIENCE_S)


def stop_the_program() -> None:
    rw.stop("the loss is low enough")
    rw.wait_for_stop(PATIENCE_S)


def fail_at_once() -> None:
    raise ValueError("no data")


def launched(**nodes: Any) -> RunningProgram:
    program = rw.Program("demo")
    for name, node in (nodes or {"store": rw.Service(Store)}).items():
        program.add(node, name=name)
    return program.launch(mode="threads")


def test_what_a_program_is_asked_for_must_exist() -> None:
    with launched(store=rw.Service(Store), actor=rw.Worker(wait_here)) as running:
        for ask in (running.client, running.logs, running.restart, running.stacks):
            with pytest.raises(ValueError, match=r"program 'demo' has no node 'stor'; it has store, actor"):
                ask("stor")
        with pytest.raises(ValueError, match="has no node"):
            running.scale("stor", 1)
        with pytest.raises(ValueError, match="worker 'actor' has no methods to call"):
            running.client("actor")
        with pytest.raises(ValueError, match="replicas must be a whole number"):
            running.scale("store", -1)
        with pytest.raises(ValueError, match="grace_s must be a number of seconds"):
            running.stop(-1.0)
        assert repr(running) in ("<RunningProgram 'demo' running>", "<RunningProgram 'demo' starting>")
    assert repr(running) == "<RunningProgram 'demo' stopped>"


def test_a_node_may_be_given_by_its_handle() -> None:
    program = rw.Program("demo")
    store = program.add(rw.Service(Store), name="store", replicas=2)
    with program.launch(mode="threads") as running:
        one, other = running.client(store[0]), running.client(store[1])
        assert [one.add(1), one.add(1), other.add(1)] == [1, 2, 1]
        assert running.client(store.all).add(0) == [2, 1]
        assert running.client(store).add(0) in (1, 2)
        running.restart(store, 1)
        assert running.logs(store) == ""
        with pytest.raises(ValueError, match="must be a whole number"):
            running.scale(store, -1)
        with pytest.raises(ValueError, match="has no node 'elsewhere'"):
            running.client(rw.Program("other").add(rw.Service(Store), name="elsewhere"))


def test_a_replica_that_there_is_not_cannot_be_killed_and_the_error_says_which_run() -> None:
    # `kill(store, 99)` returned as if it had killed something.
    program = rw.Program("demo")
    store = program.add(rw.Service(Store), name="store", replicas=2)
    with program.launch(mode="threads") as running:
        running.wait_ready(PATIENCE_S)
        for node, replica in ((store, 99), ("store", -1), (store, 2), (store, None), (store, "0")):
            with pytest.raises(ValueError, match=f"store has no replica {replica!r}; it has 2, .* running now: 0, 1"):
                running.kill(node, replica)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="has no node 'actor'"):
            running.kill("actor", 0)
        running.kill(store, 1)  # a thread cannot be killed
        assert running.client(store[1]).add(1) == 1


def test_a_client_treats_lost_calls_as_its_handle_says() -> None:
    program = rw.Program("demo")
    store = program.add(rw.Service(Kept), name="store", restart="on_failure")
    with program.launch(mode="threads") as running:
        assert running.client(store.client(on_lost="retry"))._retries  # pyright: ignore
        assert not running.client(store)._retries  # pyright: ignore
        assert not running.client(store.client(on_lost="retry"), on_lost="raise")._retries  # pyright: ignore
        with pytest.raises(ValueError, match="on_lost"):
            running.client(store, on_lost="forget")  # type: ignore[arg-type]


def test_after_the_end_everything_answers_at_once_and_nothing_is_begun() -> None:
    # A client that was made after the end left a loop and its threads behind.
    running = launched()
    store = running.client("store")
    assert store.add(1) == 1
    running.stop()
    running.stop(0.0)
    assert running.wait(0) and running.wait_ready(0)
    assert running.status().state == "stopped" and running.stacks() == {} and running.logs("store") == ""
    for begin in (lambda: running.scale("store", 2), lambda: running.restart("store"), lambda: store.add(1)):
        with pytest.raises(rw.ProgramStopped):
            begin()
    with pytest.raises(
        rw.ProgramStopped, match=r"program 'demo' has ended \(stopped: it was asked to\), .* has to be asked before"
    ):
        running.client("store")
    assert vars(running_module)["_running"] == []


def test_a_client_is_told_why_the_program_ended() -> None:
    # It was told "(stopped)", or "the program is stopping", and had to be looked up in the log of the launcher.
    program = rw.Program("demo")
    store = program.add(rw.Service(Store), name="store")
    program.add(rw.Worker(stop_the_program), name="actor")
    with program.launch(mode="threads") as running:
        client = running.client(store)
        assert running.wait(PATIENCE_S)
        with pytest.raises(rw.ProgramStopped, match=r"program 'demo' has ended \(stopped: the loss is low enough\)"):
            client.add(1)
    program = rw.Program("demo")
    store = program.add(rw.Service(Store), name="store")
    program.add(rw.Worker(fail_at_once), name="actor")
    running = program.launch(mode="threads")
    client = running.client(store)
    with pytest.raises(rw.ProgramFailed):
        running.wait(PATIENCE_S)
    with pytest.raises(rw.ProgramStopped, match=r"has ended \(failed: actor/0 failed: raised ValueError: no data\)"):
        client.add(1)


def test_it_cannot_be_sent_and_says_what_to_give_to_a_node_instead() -> None:
    """The error named a lock in it, and nothing to do."""
    with (
        launched(store=rw.Service(Store)) as running,
        pytest.raises(rw.NotPicklable, match="give the handle of a node"),
    ):
        dumps((running,), what="args")


def test_waiting_has_an_end_and_says_so() -> None:
    GATE.clear()
    with launched(actor=rw.Worker(wait_at_gate)) as running:
        assert not running.wait(0.01)
        assert running.wait_ready(PATIENCE_S)
        GATE.set()
        assert running.wait(PATIENCE_S) and running.status().state == "completed"


def test_several_threads_may_stop_it_at_once() -> None:
    running = launched()
    threads = [threading.Thread(target=running.stop, args=(grace_s,)) for grace_s in (None, 1.0, 0.5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_many_may_look_at_once_and_each_look_asks_for_itself() -> None:
    with launched() as running:
        assert running.wait_ready(PATIENCE_S)
        store = running.client("store")
        for _ in range(7):
            store.add(1)
        seen: list[int] = []
        threads = [threading.Thread(target=lambda: seen.append(running.status().nodes[0].calls_done)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert seen == [7] * 8
        wait_until(lambda: vars(running)["_conductor"].reports.answers == {})


def test_a_program_scaled_down_to_nothing_is_ready() -> None:
    with launched() as running:
        running.scale("store", 0)
        assert running.wait_ready(PATIENCE_S)
        with pytest.raises(rw.ServiceLost, match=r"scaled away|0 replicas"):
            running.client("store").add(1)


def test_ranks_cannot_be_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    with launched(actor=rw.Worker(wait_here)) as running:
        monkeypatch.setattr(rw.Worker, "num_replicas", 2)
        with pytest.raises(ValueError, match="2 processes that form a group, and cannot be scaled to 3"):
            running.scale("actor", 3)
        monkeypatch.undo()


def test_the_states_of_a_program_are_gone_with_it_though_its_session_goes_on() -> None:
    with rw.Session() as session:
        program = rw.Program("demo")
        program.add(rw.Service(Kept), name="store")
        running = program.launch(mode="processes", session=session)
        store = running.client("store")
        assert store.add(3) == 3
        running.restart("store")
        while (now := running.status().nodes[0]).generation != 1 or now.state != "running":
            threading.Event().wait(0.005)
        assert store.add(0) == 3
        assert list(session.folder.glob("checkpoints-*"))
        running.stop()
        assert not list(session.folder.glob("checkpoints-*"))


def test_a_program_with_a_checkpoint_folder_goes_on_with_the_states_of_the_one_before(tmp_path: Path) -> None:
    program = rw.Program("demo")
    program.add(rw.Service(Kept), name="store")
    for before in (0, 3):
        with program.launch(mode="threads", checkpoint=tmp_path / "states") as running:
            assert running.client("store").add(3) == before + 3
            with pytest.raises(rw.StartFailed, match=r"another launcher keeps the states of its services in .*states"):
                program.launch(mode="threads", checkpoint=tmp_path / "states")
    assert stat.S_IMODE((tmp_path / "states").stat().st_mode) == 0o700


def test_states_that_others_could_have_written_are_refused(tmp_path: Path) -> None:
    program = rw.Program("demo")
    program.add(rw.Service(Kept), name="store")
    (tmp_path / "states").mkdir()
    (tmp_path / "states").chmod(0o777)
    with pytest.raises(FileNotTrusted):
        program.launch(mode="threads", checkpoint=tmp_path / "states")


def test_a_launch_that_fails_half_way_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_self: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(ControlServer, "open", fail)
    with pytest.raises(OSError, match="no space left"):
        launched()
    assert vars(running_module)["_running"] == []


def test_a_program_whose_session_is_closed_just_as_it_begins_ends_too(monkeypatch: pytest.MonkeyPatch) -> None:
    # A session that is closed tells its programs. One that was just being launched was not among them yet: what it
    # handed over to the loop was never called, and every waiter waited for ever.
    session = rw.Session()
    opened = ControlServer.open

    def close_meanwhile(self: ControlServer) -> None:
        opened(self)
        session.close()

    monkeypatch.setattr(ControlServer, "open", close_meanwhile)
    program = rw.Program("demo")
    program.add(rw.Service(Store), name="store")
    running = program.launch(session=session)
    with pytest.raises(rw.PoolClosed, match="the session of program 'demo' was closed while it ran"):
        running.wait(PATIENCE_S)
    running.stop()
    with pytest.raises(rw.ProgramStopped, match="has ended"):
        running.client("store")


class Monitor:
    """Looks on until the program stops."""

    def run(self) -> None:
        while not rw.wait_for_stop(0.01):
            pass

    def get(self) -> None: ...


def test_an_interrupt_while_a_script_waits_for_its_programs_prints_no_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It printed "Exception ignored in atexit callback"; the end of the session kills what is left."""

    def interrupted() -> None:
        asked.append("to end")
        raise KeyboardInterrupt

    asked: list[str] = []
    monkeypatch.setattr(running_module, "_running", [SimpleNamespace(end_with_script=interrupted)])
    running_module._stop_all()
    assert asked == ["to end"]


def test_a_program_ends_when_its_workers_have_though_a_monitor_looks_on() -> None:
    running = launched(monitor=rw.Service(Monitor), store=rw.Service(Store), actor=rw.Worker(abs, 1))
    assert running.wait(PATIENCE_S)
    assert running.status().state == "completed"


class Caller:
    """Calls another service from inside its own method."""

    def __init__(self, other: Any, meeting: threading.Barrier) -> None:
        self.other = other
        self.meeting = meeting

    def cross(self) -> str:
        self.meeting.wait(PATIENCE_S)
        return self.other.answer()

    def answer(self) -> str:
        return "answered"

    def back_and_forth(self, times: int) -> int:
        return 0 if not times else 1 + self.other.back_and_forth(times - 1)


def test_calls_that_wait_for_each_other_are_ended_with_a_drawing_and_one_goes_on() -> None:
    # w1 called a, which called b; w2 called b, which called a: both waited for ever, in silence.
    program, meeting = rw.Program("crosswise"), threading.Barrier(2)
    left, right = program.declare("left"), program.declare("right")
    program.add(rw.Service(Caller, right, meeting), name="left")
    program.add(rw.Service(Caller, left, meeting), name="right")
    with program.launch("threads", copy=False) as running:
        clients = [running.client(name) for name in ("left", "right")]
        futures = [client.cross.future() for client in clients]
        errors = [error for future in futures if (error := future.exception(PATIENCE_S))]
        (error,) = errors
        assert isinstance(error, rw.CallCycle) and len(error.chain) == 5 and error.chain[0] == error.chain[-1]
        assert sorted(set(error.chain)) == ["left.answer", "left.cross", "right.answer", "right.cross"]
        assert "  left.cross    runs, and waits for its call of right.answer\n" in str(error)
        assert [future.result() for future in futures if not future.exception()] == ["answered"]
        assert clients[0].back_and_forth(6) == 6, "a chain that comes back is no circle"
        assert any("calls waited for each other" in event for event in running.status().events)


def test_a_forked_child_leaves_the_program_to_its_parent() -> None:
    with launched() as running:

        def use() -> None:
            assert vars(running_module)["_running"] == []
            running.stop()
            for ask in (running.wait, lambda: running.restart("store")):
                with pytest.raises(rw.ProgramStopped, match=r"belongs to process \d+, from which this one"):
                    ask()
            assert running.status().state == "running"

        assert running.wait_ready(PATIENCE_S)
        with ForkedProcess(use) as child:
            child.wait_until_done()
        assert running.client("store").add(2) == 2


FORKS = """
import os, sys, warnings
import ropewalk as rw

def work():
    rw.wait_for_stop()

if __name__ == "__main__":
    warnings.simplefilter("ignore", DeprecationWarning)
    program = rw.Program("forks")
    program.add(rw.Worker(work))
    with program.launch(sys.argv[1]) as running:
        running.wait_ready()
        child = os.fork()
        if not child:
            sys.exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), running.status().state)
"""


@pytest.mark.parametrize("mode", ["processes", "threads"])
def test_a_forked_child_that_ends_does_not_wait_for_the_program(tmp_path: Path, mode: str) -> None:
    # It stopped the program at its end, and waited for ever for a loop that runs in its parent only.
    (tmp_path / "forks.py").write_text(FORKS)
    command = [sys.executable, "forks.py", mode]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.stdout, done.stderr, done.returncode) == ("7 running\n", "", 0)


def fail() -> None:
    raise ValueError("the reason")


def test_a_program_that_fails_beside_a_call_to_it_raises_its_failure() -> None:
    # The call raised ProgramStopped, which left the block, and nothing said why the program had ended.
    def call_until_it_ends() -> None:
        with launched(store=rw.Service(Store), actor=rw.Worker(fail)) as running:
            store = running.client("store")
            while True:
                store.add(1)

    with pytest.raises(rw.ProgramFailed, match="ValueError: the reason") as caught:
        call_until_it_ends()
    assert caught.traceback[-1].name == "call_until_it_ends", "the frames below it were ours"


def test_a_program_that_cannot_write_its_last_row_releases_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # One step of the end that raised left out all others: the folder of the states stayed claimed in this process.
    def cannot(_: StatusRows) -> None:
        raise OSError("the disk is full")

    program = rw.Program("demo")
    program.add(rw.Service(Kept), name="store")
    with monkeypatch.context() as patched:
        patched.setattr(StatusRows, "end", cannot)
        with program.launch(mode="threads", checkpoint=tmp_path / "states") as running:
            assert running.client("store").add(3) == 3
    assert "the disk is full" in capsys.readouterr().err
    with program.launch(mode="threads", checkpoint=tmp_path / "states") as running:
        assert running.client("store").add(1) == 4


def test_a_launch_that_is_interrupted_leaves_nothing_running(monkeypatch: pytest.MonkeyPatch) -> None:
    # Ctrl-C when the nodes had begun to start: they went on to the end of the script, or of the notebook.
    begin = RunningProgram.begin

    def interrupted(self: RunningProgram, *args: Any) -> None:
        begin(self, *args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(RunningProgram, "begin", interrupted)
        with pytest.raises(KeyboardInterrupt):
            launched(actor=rw.Worker(wait_here))
    assert vars(running_module)["_running"] == []


def say_much() -> None:
    for number in range(100):
        print("line", number, flush=True)


@pytest.mark.usefixtures("shared_session")
def test_what_the_nodes_have_printed_is_shown_before_the_wait_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy host printed the last lines after what the program said next."""
    shown: list[str] = []
    may_go_on = threading.Event()

    def write(_target: Any, text: str) -> None:
        may_go_on.wait(PATIENCE_S)
        shown.append(text)

    monkeypatch.setattr(output, "_write", write)
    program = rw.Program("printing")
    program.add(rw.Worker(say_much), name="printer")
    running = program.launch("processes")
    wait_until(lambda: running._over.is_set())  # pyright: ignore[reportPrivateUsage]
    threading.Timer(0.05, may_go_on.set).start()
    running.wait(PATIENCE_S)
    assert "line 99\n" in "".join(shown)
