"""Programs whose nodes are restarted, scaled and stopped: who comes back, with what, and who follows."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

import ropewalk as rw
from ropewalk.program import endings, node_host
from tests.patience import PATIENCE_S, wait_until
from tests.scenarios.launchers import kill, launcher, suspend, wait_until_gone
from tests.scenarios.services import (
    MODES,
    Counter,
    Gate,
    Kept,
    in_thread,
    pid_of,
    serve_until_stopped,
    status_of,
)
from tests.scenarios.tasks import note, noted, wait_for_file

pytestmark = pytest.mark.usefixtures("shared_session")

Mode = Literal["processes", "threads"]
each_mode = pytest.mark.parametrize("mode", MODES)
QUICK = rw.Restart("on_failure", backoff_s=0.01)


# --- a service that moves ---


def watch_it(counter: Counter, path: str) -> None:
    """Note each generation of a service that is met, until the program stops."""
    last = -1
    while not rw.stopping():
        _pid, generation = counter.whoami()
        if generation != last:
            last = generation
            note(path, f"{rw.current_node().name}:{generation}")


class Between:
    """A service that asks another one."""

    def __init__(self, counter: Counter) -> None:
        self.counter = counter

    def whoami(self) -> tuple[int, int]:
        return self.counter.whoami()


def test_every_client_follows_a_service_that_was_killed_from_other_nodes_and_from_outside(tmp_path: Path) -> None:
    path = str(tmp_path / "notes")
    program = rw.Program("moves")
    counter = program.add(rw.Service(Counter), name="counter", restart=QUICK)
    program.add(rw.Worker(watch_it, counter, path), name="watcher")
    program.add(rw.Service(Between, counter), name="between")
    with program.launch() as running:
        outside, between = running.client("counter"), running.client("between")
        first = outside.whoami()
        assert first == between.whoami()
        wait_until(lambda: noted(path))
        for generation in (1, 2):
            kill(pid_of(running, "counter"))
            pid, seen = outside.whoami()
            assert seen in (generation - 1, generation), "perhaps it was quicker than the signal"
            wait_until(lambda generation=generation: outside.whoami()[1] == generation)
            wait_until(lambda generation=generation: between.whoami()[1] == generation)
            wait_until(lambda generation=generation: f"watcher:{generation}" in noted(path))
        assert pid != first[0]
        assert status_of(running, "counter").restarts == 2
        running.stop()


@each_mode
def test_every_client_follows_a_service_that_somebody_restarts(mode: Mode, tmp_path: Path) -> None:
    path = str(tmp_path / "notes")
    program = rw.Program("moves")
    counter = program.add(rw.Service(Counter), name="counter")
    program.add(rw.Worker(watch_it, counter, path), name="watcher")
    with program.launch(mode) as running:
        outside = running.client("counter")
        assert outside.whoami()[1] == 0
        wait_until(lambda: noted(path) == ["watcher:0"])
        running.restart("counter")
        wait_until(lambda: outside.whoami()[1] == 1)
        wait_until(lambda: noted(path) == ["watcher:0", "watcher:1"])
        assert status_of(running, "counter").restarts == 0, "nothing failed"
        running.stop()


def test_a_call_that_is_lost_in_a_restart_says_so_and_the_next_one_is_answered(tmp_path: Path) -> None:
    path = str(tmp_path / "notes")
    program = rw.Program("moves")
    program.add(rw.Service(Counter), name="counter", restart=QUICK)
    with program.launch() as running:
        counter = running.client("counter")
        thread, outcome = in_thread(lambda: counter.sleep(60, path))
        wait_until(lambda: noted(path))
        kill(pid_of(running, "counter"))
        thread.join(120)
        assert isinstance(outcome[0], rw.ServiceLost) and outcome[0].started
        assert "idempotent" in str(outcome[0])
        assert counter.add(1) == 1
        assert counter.add.future(1).result(120) == 2


def call_both(one: Counter, two: Counter, path: str) -> None:
    met: set[tuple[int, int]] = set()
    while (1, 1) not in met:
        pair = one.whoami()[1], two.whoami()[1]
        if pair not in met:
            met.add(pair)
            note(path, f"{pair[0]}{pair[1]}")


class Partner:
    """A service that calls its partner now and then, and is called by it."""

    def __init__(self, partner: Counter) -> None:
        self.partner = partner

    @rw.idempotent
    def whoami(self) -> tuple[int, int]:
        return os.getpid(), rw.current_node().generation

    @rw.idempotent
    def partners(self) -> tuple[int, int]:
        return self.partner.whoami()


def test_two_services_that_restart_at_once_and_call_each_other_find_each_other_again(tmp_path: Path) -> None:
    path = str(tmp_path / "notes")
    program = rw.Program("both")
    right = program.declare("right")
    left = program.add(rw.Service(Partner, right), name="left", restart=QUICK)
    right = program.add(rw.Service(Partner, left), name="right", restart=QUICK)
    program.add(rw.Worker(call_both, left, right, path))
    with program.launch() as running:
        wait_until(lambda: "00" in noted(path))
        for pid in [pid_of(running, name) for name in ("left", "right")]:
            kill(pid)
        assert running.wait_ready(120)
        assert running.wait(120), "the worker met both again"
    assert noted(path)[-1] == "11"


def test_partners_that_restart_at_once_answer_each_other() -> None:
    program = rw.Program("both")
    right = program.declare("right")
    left = program.add(rw.Service(Partner, right), name="left", restart=QUICK)
    program.add(rw.Service(Partner, left), name="right", restart=QUICK)
    with program.launch() as running:
        clients = {name: running.client(name) for name in ("left", "right")}
        assert [client.partners()[1] for client in clients.values()] == [0, 0]
        for pid in [pid_of(running, name) for name in clients]:
            kill(pid)
        with rw.deadline(PATIENCE_S):
            for client in clients.values():
                wait_until(lambda client=client: client.partners()[1] == 1)


# --- state ---


def test_a_killed_service_is_back_with_its_state_and_its_generation_is_one_more(tmp_path: Path) -> None:
    path = str(tmp_path / "notes")
    program = rw.Program("kept")
    program.add(rw.Service(Kept, 5, path), name="counter", restart=QUICK, checkpoint_s=0.02)
    with program.launch() as running:
        counter = running.client("counter")
        assert counter.add(37) == 42
        for number in (1, 2):  # when the second one is begun, the first one is in its file
            wait_until(lambda number=number: noted(path)[-number:] == ["42"] * number)
            assert counter.add(0) == 42
        kill(counter.whoami()[0])
        wait_until(lambda: counter.whoami()[1] == 1)
        assert counter.get() == 42


@each_mode
def test_a_service_that_is_restarted_by_hand_comes_back_with_all_that_it_had_answered(mode: Mode) -> None:
    program = rw.Program("kept")
    program.add(rw.Service(Kept), name="counter", replicas=2)
    with program.launch(mode) as running:
        counter = running.client("counter")
        assert counter.all.add(1) == [1, 1]
        assert counter[1].add(10) == 11
        running.restart("counter")
        wait_until(lambda: [generation for _, generation in counter.all.whoami()] == [1, 1])
        assert counter.all.get() == [1, 11], "the state is saved at the end, however rare checkpoints are"


class Spoiled(Kept):
    def load_state_dict(self, state: dict[str, int]) -> None:
        raise RuntimeError(f"cannot take back {state}")


def test_a_state_that_cannot_be_taken_back_fails_the_service_with_the_cause() -> None:
    program = rw.Program("spoiled")
    program.add(rw.Service(Spoiled), name="counter")
    running = program.launch()
    assert running.client("counter").add(3) == 3
    running.restart("counter")
    with pytest.raises(rw.ProgramFailed, match=r"cannot take back \{'value': 3\}") as caught:
        running.wait(120)
    assert isinstance(caught.value.__cause__, RuntimeError)


class Ledger:
    """Notes what it is given, and dies three times after it has done so and before it has said so."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, int]] = []

    def insert(self, caller: int, number: int) -> int:
        self.entries.append((caller, number))
        if (caller, number) == (1, 40 * (rw.current_node().generation + 1)) and number <= 120:
            os._exit(7)
        return number

    @rw.idempotent
    def read(self) -> list[tuple[int, int]]:
        return self.entries

    def state_dict(self) -> Any:
        return list(self.entries)

    def load_state_dict(self, state: Any) -> None:
        self.entries = state


def insert_all(ledger: Ledger) -> None:
    replica = rw.current_node().replica
    assert [ledger.insert(replica, number) for number in range(160)] == list(range(160))


def test_workers_whose_clients_retry_outlive_their_service_and_nothing_takes_effect_twice(tmp_path: Path) -> None:
    program = rw.Program("ledger")
    ledger = program.add(rw.Service(Ledger), name="ledger", restart=QUICK, checkpoint_s=0.01)
    program.add(rw.Worker(wait_for_file, str(tmp_path / "gate")), name="gate")
    program.add(rw.Worker(insert_all, ledger.client(on_lost="retry")), name="actor", replicas=2)
    with program.launch() as running:
        outside = running.client("ledger", on_lost="retry")
        wait_until(lambda: status_of(running, "ledger").restarts == 3)
        assert outside.insert(2, 7) == 7
        wait_until(lambda: {(2, 7), (1, 159)} <= set(outside.read()))
        entries = outside.read()
        assert len(entries) == len(set(entries)), "an entry was made twice"
        with pytest.raises(ValueError, match="on_lost must be"):
            running.client("ledger", on_lost="again")  # type: ignore[arg-type]
        (tmp_path / "gate").touch()
        assert running.wait(120), "no worker died of it"


def test_every_start_of_a_worker_knows_its_generation_and_attempt(tmp_path: Path) -> None:
    path = str(tmp_path / "notes")
    program = rw.Program("generations")
    program.add(rw.Worker(fail_twice, path), name="worker", replicas=2, restart=QUICK)
    with program.launch() as running:
        assert running.wait(120)
    expected = [f"{name}:{number}:{number}:2" for name in ("0", "1") for number in range(3)]
    assert sorted(noted(path)) == expected


def fail_twice(path: str) -> None:
    node = rw.current_node()
    note(path, f"{node.replica}:{node.generation}:{node.attempt}:{node.replicas}")
    if node.generation < 2:
        raise RuntimeError("not yet")


# --- gangs ---


def meet(path: str) -> None:
    node = rw.current_node()
    note(path, f"{node.name}{node.replica}:{node.generation}:{os.getpid()}")
    if node.generation == 0:
        rw.wait_for_stop()


def test_one_death_in_a_gang_restarts_all_of_it_with_a_new_generation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for grace in ("GRACE_S", "_RESTART_GRACE_S"):  # those that are well are not waited for until its end
        monkeypatch.setattr(endings, grace, 3600.0)
    path = str(tmp_path / "notes")
    program = rw.Program("gang")
    with program.group("gang", restart=rw.Restart(strategy="together", backoff_s=0.01)):
        program.add(rw.Worker(meet, path), name="a", replicas=2)
        program.add(rw.Worker(meet, path), name="b")
    with program.launch() as running:
        wait_until(lambda: len(noted(path)) == 3)
        kill(pid_of(running, "a", 1))
        assert running.wait(120)
    seen = [line.rpartition(":") for line in noted(path)]
    assert sorted(node for node, _, _ in seen) == ["a0:0", "a0:1", "a1:0", "a1:1", "b0:0", "b0:1"]
    assert len({pid for _, _, pid in seen}) == 6


# --- policies ---


def note_start(path: str) -> None:
    note(path, "ran")


def test_always_starts_what_has_completed_again_until_the_program_stops(tmp_path: Path) -> None:
    path = str(tmp_path / "notes")
    program = rw.Program("always")
    program.add(rw.Worker(note_start, path), restart=rw.Restart("always", backoff_s=0.01))
    program.add(rw.Worker(wait_for_file, str(tmp_path / "gate")), name="waits")
    with program.launch() as running:
        wait_until(lambda: len(noted(path)) >= 3)
        (tmp_path / "gate").touch()
        assert running.wait(120), "what is started again for ever does not hold up the end"


@each_mode
def test_on_failure_leaves_what_has_completed_in_peace(mode: Mode, tmp_path: Path) -> None:
    path = str(tmp_path / "notes")
    program = rw.Program("completes")
    program.add(rw.Worker(note_start, path), restart="on_failure")
    with program.launch(mode) as running:
        assert running.wait(120)
        assert running.status().state == "completed"
    assert noted(path) == ["ran"]


@each_mode
def test_in_threads_and_processes_a_worker_that_raises_is_started_again(mode: Mode, tmp_path: Path) -> None:
    path = str(tmp_path / "notes")
    program = rw.Program("again")
    program.add(rw.Worker(fail_twice, path), restart=QUICK)
    with program.launch(mode) as running:
        assert running.wait(120)
    assert noted(path) == ["0:0:0:1", "0:1:1:1", "0:2:2:1"]


def fail_at_once() -> None:
    raise RuntimeError("I am not needed")


@each_mode
def test_the_program_goes_on_without_a_node_that_is_not_essential(mode: Mode, tmp_path: Path) -> None:
    program = rw.Program("without")
    program.add(rw.Worker(fail_at_once), name="optional", essential=False)
    counter = program.add(rw.Service(Counter), name="counter")
    program.add(rw.Worker(_count_then_wait, counter, str(tmp_path / "gate")), name="counts")
    with program.launch(mode) as running:
        wait_until(lambda: status_of(running, "optional").state == "failed")
        assert "I am not needed" in status_of(running, "optional").last_cause
        assert any("optional" in event and "I am not needed" in event for event in running.status().events)
        (tmp_path / "gate").touch()
        assert running.wait(120)
        assert running.status().state == "completed"


def _count_then_wait(counter: Counter, path: str) -> None:
    wait_for_file(path)
    counter.add(1)


# --- scaling ---


@each_mode
def test_replicas_come_and_go_while_calls_run(mode: Mode) -> None:
    program = rw.Program("scaled")
    program.add(rw.Service(Counter), name="counter")
    with program.launch(mode) as running:
        counter = running.client("counter")
        halt = threading.Event()
        failures: list[BaseException] = []

        def call() -> None:
            while not halt.is_set():
                try:
                    counter.whoami()
                except BaseException as error:
                    failures.append(error)
                    return

        threads = [threading.Thread(target=call, daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            running.scale("counter", 4)
            assert running.wait_ready(120)
            wait_until(lambda: len(counter) == 4)
            assert counter.all.get() == [0, 0, 0, 0]
            assert counter[3].add(5) == 5
            wait_until(lambda: all(status_of(running, "counter", index).calls_done > 2 for index in range(4)))
            running.scale("counter", 1)
            wait_until(lambda: len(running.status().nodes) == 1)
            wait_until(lambda: len(counter) == 1)
            assert counter.get() == 0
        finally:
            halt.set()
            for thread in threads:
                thread.join(120)
        assert failures == []
        running.stop()


@each_mode
def test_replicas_that_are_scaled_away_are_asked_no_more(mode: Mode) -> None:
    program = rw.Program("scaled")
    program.add(rw.Service(Counter), name="counter", replicas=3)
    with program.launch(mode) as running:
        counter = running.client("counter")
        assert counter.all.get() == [0, 0, 0]
        running.scale("counter", 1)
        wait_until(lambda: len(running.status().nodes) == 1)
        wait_until(lambda: len(counter) == 1)
        assert [counter.add(1) for _ in range(6)] == [1, 2, 3, 4, 5, 6]
        with pytest.raises(IndexError, match="1 replica"):
            _ = counter[1]


def test_workers_can_be_added_to_a_running_program(tmp_path: Path) -> None:
    path = str(tmp_path / "notes")
    program = rw.Program("scaled")
    program.add(rw.Worker(_note_and_wait, path), name="worker")
    with program.launch() as running:
        wait_until(lambda: noted(path) == ["0"])
        running.scale("worker", 3)
        wait_until(lambda: sorted(noted(path)) == ["0", "1", "2"])
        running.scale("worker", 0)
        wait_until(lambda: running.status().nodes == ())
        running.stop()


def _note_and_wait(path: str) -> None:
    note(path, str(rw.current_node().replica))
    rw.wait_for_stop()


@each_mode
def test_what_cannot_be_scaled_or_restarted_is_told(mode: Mode) -> None:
    program = rw.Program("scaled")
    program.add(rw.Service(Counter), name="counter")
    program.add(rw.Worker(serve_until_stopped), name="worker")
    with program.launch(mode) as running:
        calls: list[Callable[[], Any]] = [
            lambda: running.scale("count", 2),
            lambda: running.restart("count"),
            lambda: running.client("count"),
            lambda: running.logs("count"),
        ]
        for call in calls:
            with pytest.raises(ValueError, match=r"no node 'count'.* counter"):
                call()
        with pytest.raises(ValueError, match="-1"):
            running.scale("counter", -1)
        with pytest.raises(ValueError, match="no methods"):
            running.client("worker")
        running.stop()
    with pytest.raises(rw.RopewalkError, match="has ended"):
        running.scale("counter", 2)


def test_a_restart_of_a_hung_service_kills_it_after_its_grace(tmp_path: Path) -> None:
    path = str(tmp_path / "notes")
    program = rw.Program("hung")
    program.add(rw.Service(Counter), name="counter")
    with program.launch() as running:
        running._conductor.endings.grace_s = 0.3
        counter = running.client("counter")
        thread, outcome = in_thread(lambda: counter.sleep(60, path))
        wait_until(lambda: noted(path))
        suspend(pid_of(running, "counter"))
        running.restart("counter")
        with rw.deadline(PATIENCE_S):
            wait_until(lambda: counter.whoami()[1] == 1)
        thread.join(120)
        assert isinstance(outcome[0], rw.ServiceLost)


# --- a slow consumer ---


@each_mode
def test_callers_of_a_slow_service_are_held_back_and_the_status_shows_it(mode: Mode, tmp_path: Path) -> None:
    path = str(tmp_path / "notes")
    program = rw.Program("slow")
    program.add(rw.Service(Slow, path), name="slow")
    with program.launch(mode) as running:
        slow = running.client("slow")
        sent: list[Any] = []
        assert slow.num_taken() == 0, "the way to it is open"

        def pour() -> None:
            for _ in range(5000):
                sent.append(slow.take.future(1))

        thread = threading.Thread(target=pour, daemon=True)
        thread.start()
        wait_until(lambda: status_of(running, "slow").calls_waiting >= 1000)
        time.sleep(0.1)  # it would be thousands by now
        assert len(sent) <= 1100
        assert status_of(running, "slow").calls_waiting <= 1100
        assert "take" in status_of(running, "slow").calls_running[0].method
        Path(path).touch()
        thread.join(120)
        assert len(sent) == 5000
        assert sorted(future.result(120) for future in sent) == list(range(1, 5001))


class Slow:
    def __init__(self, path: str) -> None:
        self.path = path
        self.num = 0

    def num_taken(self) -> int:
        return self.num

    def take(self, number: int) -> int:
        wait_until(lambda: os.path.exists(self.path))
        self.num += number
        return self.num


# --- stopping ---


def wait_at(gate: Gate, path: str) -> None:
    note(path, "worker")
    gate.pass_through()


class CallsOthers:
    def __init__(self, gate: Gate, path: str) -> None:
        self.gate = gate
        self.path = path

    def ask(self) -> str:
        note(self.path, "service")
        return self.gate.pass_through()


class WorksWhileServing(CallsOthers):
    def run(self) -> None:
        note(self.path, "run")
        self.gate.pass_through()


class HungGate(Gate):
    """Nobody passes, not even at the end."""

    def pass_through(self) -> str:
        time.sleep(60)
        return "passed"


@pytest.mark.parametrize(
    ("made", "kind"),
    [
        *((Gate, "worker"), (HungGate, "service"), (HungGate, "run"), (Gate, "outside")),
        *(pytest.param(Gate, kind, marks=pytest.mark.soak) for kind in ("service", "run")),
        *(pytest.param(HungGate, kind, marks=pytest.mark.soak) for kind in ("worker", "outside")),
    ],
)
def test_a_program_stops_soon_though_calls_wait_for_their_answers(made: type[Gate], kind: str, tmp_path: Path) -> None:
    path = str(tmp_path / "notes")
    program = rw.Program("stopped")
    gate = program.add(rw.Service(made), name="gate")
    if kind == "worker":
        program.add(rw.Worker(wait_at, gate, path))
    program.add(rw.Service(WorksWhileServing if kind == "run" else CallsOthers, gate, path), name="between")
    running = program.launch()
    waiting = {
        "service": lambda: in_thread(running.client("between").ask),
        "outside": lambda: in_thread(running.client("gate").pass_through),
    }.get(kind, lambda: None)()
    if kind != "outside":
        wait_until(lambda: noted(path) == [kind])
    wait_until(lambda: status_of(running, "gate").calls_running)
    running.stop(grace_s=0.5)
    assert running.wait(0)
    assert running.status().state == "stopped"
    if waiting:
        waiting[0].join(PATIENCE_S)
        assert not waiting[0].is_alive(), "its call has no end"
        assert waiting[1] == ["passed"] or isinstance(waiting[1][0], rw.CallError), waiting


@pytest.mark.parametrize("kind", [pytest.param("worker", marks=pytest.mark.soak), "service", "run", "outside"])
def test_a_program_of_threads_stops_soon_though_calls_wait_for_their_answers(kind: str, tmp_path: Path) -> None:
    path = str(tmp_path / "notes")
    program = rw.Program("stopped")
    gate = program.add(rw.Service(Gate), name="gate")
    if kind == "worker":
        program.add(rw.Worker(wait_at, gate, path))
    program.add(rw.Service(WorksWhileServing if kind == "run" else CallsOthers, gate, path), name="between")
    running = program.launch("threads")
    waiting = {
        "service": lambda: in_thread(running.client("between").ask),
        "outside": lambda: in_thread(running.client("gate").pass_through),
    }.get(kind, lambda: None)()
    wait_until(lambda: status_of(running, "gate").calls_running)
    running.stop()
    if waiting:
        waiting[0].join(PATIENCE_S)
        assert not waiting[0].is_alive(), "its call has no end"
        assert waiting[1] == ["passed"] or isinstance(waiting[1][0], rw.CallError), waiting


def ignore_the_end(path: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note(path, "deaf")
    while True:
        time.sleep(0.05)


def test_a_worker_that_ignores_the_stop_is_killed_after_its_grace(tmp_path: Path) -> None:
    path = str(tmp_path / "notes")
    program = rw.Program("deaf")
    program.add(rw.Worker(ignore_the_end, path))
    running = program.launch()
    wait_until(lambda: noted(path))
    begun = time.monotonic()
    running.stop(grace_s=0.2)
    assert time.monotonic() - begun > 0.2
    assert running.wait(0)


def test_what_threads_cannot_kill_is_left_alone_and_told(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    program = rw.Program("deaf")
    program.add(rw.Worker(wait_for_file, str(gate)), name="deaf")
    running = program.launch("threads")
    running.wait_ready(120)
    running.stop(grace_s=0.1)
    assert any("deaf" in event and "cannot be killed" in event for event in running.status().events)
    gate.touch()


def test_a_worker_that_is_asked_to_stop_may_use_its_services_for_its_last_words(tmp_path: Path) -> None:
    program = rw.Program("last")
    counter = program.add(rw.Service(Kept), name="counter")
    path = str(tmp_path / "notes")
    program.add(rw.Worker(_report_at_the_end, counter, path), replicas=2)
    running = program.launch()
    running.wait_ready(120)
    running.stop()
    assert sorted(noted(path)) == ["said:1", "said:2"]


def _report_at_the_end(counter: Counter, path: str) -> None:
    rw.wait_for_stop()
    note(path, f"said:{counter.add(1)}")


class Judge:
    """A service that stops the program, from a thread of its own."""

    def enough(self) -> None:
        rw.stop("it is enough")

    def enough_in_a_thread(self) -> None:
        threading.Thread(target=rw.stop, args=("it is enough",)).start()


def stop_from(way: str, judge: Judge, path: str) -> None:
    rw.on_stop(lambda: note(path, "callback"))
    if way == "worker":
        rw.stop("it is enough")
    elif way == "thread":
        threading.Thread(target=rw.stop, args=("it is enough",)).start()
    else:
        getattr(judge, way)()
    assert rw.wait_for_stop(10) and rw.stopping()
    note(path, "stopped")


@pytest.mark.parametrize("way", ["worker", "thread", "enough", "enough_in_a_thread"])
@each_mode
def test_a_program_can_be_stopped_from_any_thread_of_any_node(mode: Mode, way: str, tmp_path: Path) -> None:
    path = str(tmp_path / "notes")
    program = rw.Program("enough")
    judge = program.add(rw.Service(Judge), name="judge")
    program.add(rw.Worker(stop_from, way, judge, path))
    program.add(rw.Worker(serve_until_stopped), replicas=2)
    running = program.launch(mode)
    assert running.wait(120)
    assert running.status().state == "stopped"
    wait_until(lambda: sorted(noted(path)) == ["callback", "stopped"])


def _note_late(path: str) -> None:
    rw.on_stop(lambda: (time.sleep(0.2), note(path, "late")))
    rw.stop()
    rw.wait_for_stop()


@each_mode
def test_a_stop_callback_that_is_slower_than_its_node_comes_to_its_end(mode: Mode, tmp_path: Path) -> None:
    path = str(tmp_path / "notes")
    program = rw.Program("late")
    program.add(rw.Worker(_note_late, path))
    assert program.launch(mode).wait(120)
    assert noted(path) == ["late"]


def _leave_hanging(path: str) -> None:
    rw.on_stop(lambda: wait_for_file(path))


def test_a_stop_callback_that_hangs_does_not_hold_up_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_host, "_CALLBACKS_S", 0.2)
    gate = tmp_path / "gate"
    program = rw.Program("late")
    program.add(rw.Worker(_leave_hanging, str(gate)), name="hangs")
    running = program.launch("threads")
    assert running.wait(120)
    assert any("hangs: a stop callback" in event for event in running.status().events)
    gate.touch()


def test_stop_is_for_nodes_only() -> None:
    for call in (rw.stop, rw.stopping, rw.wait_for_stop, rw.current_node):
        with pytest.raises(RuntimeError, match="not run inside a node"):
            call()


PROGRAM_TO_INTERRUPT = """
    import ropewalk as rw

    def work(gate):
        say("works", os.getpid())
        gate.wait_here()

    class Gate:
        def wait_here(self):
            time.sleep(3600)

    if __name__ == "__main__":
        program = rw.Program("interrupted")
        gate = program.add(rw.Service(Gate))
        program.add(rw.Worker(work, gate))
        program.add(rw.Worker(rw.wait_for_stop), name="idler")
        with program.launch(sys.argv[1] if len(sys.argv) > 1 else os.environ["HOW"]) as running:
            running.wait_ready()
            say("ready", *tree())
            running.wait()
"""


@pytest.mark.parametrize("mode", ["processes", pytest.param("threads", marks=pytest.mark.soak)])
def test_ctrl_c_ends_a_program_with_all_of_its_processes_and_says_nothing_but_keyboardinterrupt(
    mode: Mode, tmp_path: Path
) -> None:
    with launcher(PROGRAM_TO_INTERRUPT, tmp_path, HOW=mode) as script:
        lines = [script.line(), script.line()]
        assert any("ready" in line for line in lines), lines
        script.signal(signal.SIGINT)
        code, out, errors = script.end()
    assert code == -signal.SIGINT or code == 130 or code == 1
    assert len(re.findall("Traceback", errors)) <= 1, errors
    assert re.search(
        r"KeyboardInterrupt(\nprogram 'interrupted' waited for the end of work\.0(, idler\.0)?)?\n$", errors
    ), errors
    assert "Traceback" not in out


LEFT_RUNNING = """
    import ropewalk as rw

    class Gate:
        def wait_here(self):
            time.sleep(3600)

    def work(gate):
        gate.wait_here()

    if __name__ == "__main__":
        program = rw.Program("left")
        gate = program.add(rw.Service(Gate), name="gate")
        program.add(rw.Worker(work, gate))
        running = program.launch(os.environ["HOW"])
        running.wait_ready()
        end = os.environ["END"]
        if end == "pool":
            pool = rw.Pool(1)
            pool.map(abs, [1])
        say(*tree())
        if end == "raises":
            raise KeyError("at the end")
        if end.startswith("SIG"):
            os.kill(os.getpid(), getattr(signal, end))
"""


@pytest.mark.parametrize(
    ("mode", "end"),
    [
        *(("processes", end) for end in ("returns", "SIGTERM", "SIGKILL")),
        *(pytest.param("processes", end, marks=pytest.mark.soak) for end in ("raises", "pool")),
        pytest.param("threads", "returns", marks=pytest.mark.soak),
        ("threads", "raises"),
    ],
)
def test_a_script_that_ends_while_its_program_runs_leaves_nothing(mode: str, end: str, tmp_path: Path) -> None:
    with launcher(LEFT_RUNNING, tmp_path, HOW=mode, END=end) as script:
        pids = script.numbers()
        code, _, errors = script.end()
    codes = {"raises": 1, "SIGTERM": -signal.SIGTERM, "SIGKILL": -signal.SIGKILL}
    assert code == codes.get(end, 0), errors
    assert errors.count("Traceback") == (end == "raises"), errors
    wait_until_gone(pids)
