"""`RunningProgram`: a launched program, as its user sees it.

The conductor does the work, on a loop; this class passes calls from any thread to it and waits for the results.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import shutil
import signal
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, TypeVar, overload

from ropewalk.argument_kinds import check_number
from ropewalk.calls.caller import LAST_WORDS_S, Caller
from ropewalk.calls.client import Client
from ropewalk.control.process_stacks import of_processes
from ropewalk.control.server import ControlServer
from ropewalk.control.target import ControlTarget, new_id
from ropewalk.control.view import Kind, View
from ropewalk.errors import PoolClosed, ProgramStopped, ServiceLost
from ropewalk.program import reporting, stacks
from ropewalk.program.announcer import LAUNCHER
from ropewalk.program.conductor import Conductor
from ropewalk.program.directory import DirectoryView
from ropewalk.program.forgotten import SourceLine, UntoldFailure, left_running
from ropewalk.program.handle import Handle, OnLost, checked_on_lost
from ropewalk.program.hosting import Hosting
from ropewalk.program.instructions import ProgramOutcome, ReplicaState, ReplicaStatus
from ropewalk.program.kept_folder import KeptFolder
from ropewalk.program.log_files import LogFile
from ropewalk.program.messages import NOBODY_WAITS, UnitName
from ropewalk.program.node import NodeSpec
from ropewalk.program.observing import StatusRows
from ropewalk.program.packing import PackedProgram
from ropewalk.program.status import ProgramStatus
from ropewalk.program.viewing import ProgramViewer
from ropewalk.quantities import counted
from ropewalk.supervision.failure import DeathRecord
from ropewalk.tracking.observed_run import UNOBSERVED, ObservedRun
from ropewalk.transport.frames import Part
from ropewalk.transport.loop import Loop
from ropewalk.transport.loop_with_deputies import LoopWithDeputies
from ropewalk.user_frames import stacks_text, user_frames_only

T = TypeVar("T")

_GRACE_ON_ERROR_S = 1.0
"""Grace in seconds for the nodes when an exception leaves the `with` block or the script."""

_MOST_TOLD = 5
"""Nodes that an interrupt of `wait` names."""
_LOOK_S = 1.0
"""A waiting thread checks at this interval, in seconds, that there is still a loop to wake it."""

_running: list[RunningProgram] = []
"""Programs that have not ended: they are asked to end at the end of the script, before their processes are killed."""

os.register_at_fork(after_in_child=_running.clear)


class RunningProgram(ControlTarget):
    """A running program. Leaving its `with` block stops it; `wait` waits until it is complete.

    Made by `program.launch()`.
    """

    kind: Kind = "program"

    def __init__(
        self,
        name: str,
        specs: Sequence[NodeSpec],
        packed: PackedProgram,
        watched: ObservedRun = UNOBSERVED,
        states: KeptFolder | None = None,
    ) -> None:
        self.id: str = new_id()
        """Unique on this machine; the page and `ropewalk ps --json` show it."""
        self._specs = {spec.name: spec for spec in specs}
        self._packed = packed
        self._view = DirectoryView(self._subscribe, self._before_waiting)
        self._states = states
        self._conductor = Conductor(name, specs, packed, self._view, self._end_soon, watched, states)
        self._rows = StatusRows(self._conductor, watched)
        self._viewer = ProgramViewer(self._conductor, specs, self.id)
        self._pid = os.getpid()
        self._started = time.time()
        self._over = threading.Event()
        self._questions = itertools.count(NOBODY_WAITS + 1)
        self._hosting: Hosting
        self._control: ControlServer
        self._client_loop: Loop | None = None
        self._caller: Caller | None = None
        self._caller_lock = threading.Lock()
        self._loop_lost = threading.Lock()
        self._launched = SourceLine()
        self._untold = UntoldFailure(self._launched)
        self._wait_for_output: Callable[[], None] = lambda: None
        self._is_ending = False  # changed under the lock, so that no caller is made that would never be closed

    def begin(self, hosting: Hosting, shown_as: ControlTarget | None = None) -> None:
        """Start everything; called once.

        Args:
            hosting: where its nodes run.
            shown_as: what other terminals and the page see in its place; None: itself.
        """
        self._hosting = hosting
        self._control = ControlServer(hosting.loop, hosting.folder, hosting.run_id, shown_as or self)
        self._conductor.death_lines.is_quiet = shown_as is not None and shown_as.tells_deaths
        self._control.open()
        atexit.unregister(_stop_all)
        atexit.register(_stop_all)  # registered after the session's handler, and so called before it
        _running.append(self)
        self._conductor.begin(hosting)
        hosting.loop.call_soon(self._rows.begin)

    @property
    def name(self) -> str:
        """Name of the program."""
        return self._conductor.name

    @property
    def has_ended(self) -> bool:
        """Whether nothing of the program runs any more."""
        return self._over.is_set()

    @property
    def has_queued_jobs(self) -> bool:
        """Whether jobs for its processes wait in the queue of a cluster manager, which decides how long."""
        return self._hosting.has_queued_jobs

    def __enter__(self) -> RunningProgram:
        return self

    @user_frames_only
    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        self.stop(None if kind is None else _GRACE_ON_ERROR_S)
        if kind is None or issubclass(kind, ProgramStopped | ServiceLost):  # the latter follow from a failure of a node
            self._raise_failure()

    def __repr__(self) -> str:
        return f"<RunningProgram {self.name!r} {reporting.state_of(self._conductor)}>"

    def __reduce__(self) -> Any:
        raise TypeError(
            f"{self!r} stays in the process that launched it: give the handle of a node, which program.add(...) "
            "returned, to the node that is to call it; a node ends the program with rw.stop()"
        )

    def _repr_html_(self) -> str:
        return self.status()._repr_html_()  # pyright: ignore[reportPrivateUsage]

    # Waiting and ending

    @user_frames_only
    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the program has ended: its finite nodes have completed, it was stopped, or it failed.

        Args:
            timeout_s: seconds; None waits for ever.

        Returns:
            Whether it has ended; False only after `timeout_s`.

        Raises:
            ProgramFailed: a node failed; the error names the node that failed first, the cause and its last output.
            PoolClosed: its session was closed while it ran.
        """
        try:
            is_over = self._wait_over(timeout_s)
        except KeyboardInterrupt as error:
            error.add_note(self._awaited_in_words())
            raise
        if not is_over:
            return False
        self._wait_for_output()  # it comes before what the program prints next
        self._raise_failure()
        return True

    def wait_ready(self, timeout_s: float | None = None) -> bool:
        """Wait until every node is ready or has already completed.

        Args:
            timeout_s: seconds; None waits for ever.

        Returns:
            Whether that is so; False only after `timeout_s`.

        Raises:
            ProgramFailed: a node failed before it was ready.
        """
        due = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._is_ready_or_over:
            left_s = _LOOK_S if due is None else min(due - time.monotonic(), _LOOK_S)
            if left_s <= 0:
                return False
            self._conductor.changed.wait_until(lambda: self._is_ready_or_over, left_s)
            self._look_at_loop()
        self._raise_failure()
        return True

    def stop(self, grace_s: float | None = None) -> None:
        """End all nodes and wait until they have ended; may be called twice, and from several threads.

        Workers are asked first; services keep answering them until they have ended.

        Args:
            grace_s: seconds between the request to end and the kill; 5 by default. Nodes that end earlier are not
                waited for any longer.

        Raises:
            ValueError: `grace_s` is negative or not a number.
        """
        check_number("grace_s", grace_s, Real, "a number of seconds", least=0)
        if self._pid != os.getpid():
            return  # a forked child: the nodes belong to its parent
        if not self._over.is_set():
            self._hosting.loop.call_soon(lambda: self._conductor.stop("it was asked to", grace_s))
        self._wait_over(None)

    # Changing it

    def scale(self, node: str | Handle[Any], replicas: int) -> None:
        """Change the number of replicas of a node while the program runs; return when the change is under way.

        Args:
            node: the handle of the node, or its name.
            replicas: the new number of replicas.

        Raises:
            ValueError: there is no such node, the number is negative, or the node itself fixes its number of replicas.
            TypeError: the number is no whole number.
            ProgramStopped: the program has ended.
        """
        spec = self._spec(node)
        unit = spec.unit
        least, most = spec.node.least_replicas, spec.node.num_replicas
        if least is not None and most is not None:
            if not least <= replicas <= most:
                raise ValueError(f"{spec} has {least} to {most} ranks, and cannot be scaled to {replicas}")
        elif most is not None:
            raise ValueError(
                f"{spec} is {spec.node.num_replicas} processes that form a group, and cannot be scaled to "
                f"{replicas}; launch the program anew with another size"
            )
        self._call(lambda: self._conductor.scale(unit, replicas))

    def restart(self, node: str | Handle[Any], replica: int | None = None) -> None:
        """Restart all replicas of a node, or one; return when the restart is under way.

        Running replicas are asked to end first, and answer calls until they have. Nodes that restart together do so.

        Args:
            node: the handle of the node, or its name.
            replica: index of the replica, from 0; None for all.

        Raises:
            ValueError: there is no such node or replica.
            ProgramStopped: the program has ended.
        """
        unit = self._spec(node).unit
        self._call(lambda: self._conductor.restart(unit, replica))

    def kill(self, node: str | Handle[Any], replica: int) -> None:
        """Kill the process of a replica at once, as if it did not answer; its restart rule then applies.

        Nothing happens to a replica that does not run now, and in threads mode, where replicas have no processes.

        Args:
            node: the handle of the node, or its name.
            replica: index of the replica, from 0.

        Raises:
            ValueError: there is no such node or replica; the error says which replicas run.
            ProgramStopped: the program has ended.
        """
        self._kill(self._spec(node).unit, replica)

    @overload
    def client(self, node: Handle[T], *, on_lost: OnLost | None = None) -> T: ...
    @overload
    def client(self, node: str, *, on_lost: OnLost | None = None) -> Any: ...
    def client(self, node: str | Handle[Any], *, on_lost: OnLost | None = None) -> Any:
        """Return a client of a service, for code outside the program.

        Args:
            node: the handle of the node, or its name.
            on_lost: as for `Handle.client`; by default as the handle says, or "raise".

        Raises:
            ValueError: there is no such node, it has no methods, or `on_lost` is neither "raise" nor "retry".
            ProgramStopped: the program has ended.
        """
        spec = self._spec(node)
        methods = spec.node.methods()
        if methods is None:
            raise ValueError(f"{spec} has no methods to call; a Service has")
        address, by_default = (node.address, node.on_lost) if isinstance(node, Handle) else ("any", "raise")
        retries = checked_on_lost(on_lost or by_default) == "retry"
        return Client(self._own_caller(), spec.name, address, methods, retries=retries)

    # Looking at it

    def view(self, panels: Mapping[str, int] | None = None) -> View:
        """What the page and `ropewalk ps` show about the program now.

        Args:
            panels: names of the pictures whose data is wanted; see `ropewalk.control.view.Observable`.
        """
        return self._viewer.view(self.status(), panels or ())

    def act(self, action: str, process: str) -> str:
        """Kill or restart a replica, as `kill` and `restart` do.

        Args:
            action: "kill" or "restart".
            process: the replica, such as "actor.3".

        Returns:
            What follows, in words.

        Raises:
            ValueError: there is no such action or replica, or the replica has no process now.
            ProgramStopped: the program has ended.
        """
        name, _, number = process.rpartition(".")
        unit = self._spec(name).unit if name in self._specs else ""
        if not unit or not number.isdecimal() or int(number) >= self._conductor.units.sizes[unit]:
            raise ValueError(
                f"program {self.name!r} has no replica {process!r}; its nodes are {', '.join(self._specs)}"
            )
        if action == "restart":
            self.restart(name, int(number))
            return f"{process} is asked to end, and starts again"
        if action != "kill":
            raise ValueError(f"a replica can be asked to kill or restart, not to {action!r}")
        if not self._kill(unit, int(number)):
            why = "its program runs as threads" if self._hosting.shares_host else "it does not run now"
            raise ValueError(f"{process} has no process that could be killed: {why}")
        return f"{process} is killed; its restart rule decides whether it starts again"

    def status(self) -> ProgramStatus:
        """The state of the program and of each of its nodes now."""
        if not self._over.is_set() and not self._hosting.loop.is_here:
            number = next(self._questions)
            try:
                num_asked = self._call(lambda: reporting.put_question(self._conductor, number))
            except ProgramStopped:  # it ended in this moment
                num_asked = 0
            reporting.await_answers(self._conductor, number, num_asked)
        return reporting.report(self._conductor, self._hosting.run_id, self._started)

    def logs(self, node: str | Handle[Any], lines: int = 100) -> str:
        """The last lines that each replica of a node printed; empty in threads mode, where all print to one place.

        Args:
            node: the handle of the node, or its name.
            lines: number of lines of each replica.

        Raises:
            ValueError: there is no such node.
        """
        name = self._spec(node).name
        tails: list[str] = []
        for label, path in self.log_files().items():
            if label.rpartition(".")[0] == name and path.exists():
                with LogFile(path) as file:
                    tails += file.tail(lines)
        return stacks_text("".join(f"{line}\n" for line in tails))

    def log_files(self) -> Mapping[str, Path]:
        """The file that holds the output of each replica, by replica name such as "actor.3"."""
        files: dict[str, Path] = {}
        for spec in self._specs.values():
            for replica in range(self._conductor.units.sizes[spec.unit]):
                path = self._hosting.log_file(spec.unit, replica)
                if path is not None:
                    files[f"{spec.name}.{replica}"] = path
        return files

    def stacks(self, node: str | None = None, timeout_s: float = 2.0) -> Mapping[str, str]:
        """The Python stacks of every node's threads, by replica name.

        Threads that run no user code are left out. A process whose threads are all stuck in C answers as well; a
        stopped process (SIGSTOP) does not. Processes print the stacks of all their threads into their output, from
        which they are read, so the stacks appear there too.

        Args:
            node: only this node, or only this replica, such as "actor.3".
            timeout_s: seconds to wait for the slowest process.

        Returns:
            The stacks as text; for a process that did not answer, a sentence that says so.

        Raises:
            ValueError: there is no such node.
        """
        if node is not None and not any(node in (name, f"{name}.{node.rpartition('.')[2]}") for name in self._specs):
            self._spec(node)
        if self._hosting.shares_host:
            return stacks.of_threads(self.name, node)
        units = self._conductor.units
        live = {
            f"{spec.name}.{unit.name.replica}": unit
            for unit in units
            if unit.address  # without an address the process has no handler yet, and the signal would kill it
            for spec in units.nodes[unit.name.unit]
        }
        files = {
            label: path
            for label, path in self.log_files().items()
            if label in live and node in (None, label, label.rpartition(".")[0])
        }
        return of_processes(files, lambda label: self._hosting.signal(live[label].name, signal.SIGUSR2), timeout_s)

    # Other ends

    def abandon(self) -> None:
        """End a program whose launch was interrupted after its nodes had begun to start: nobody can reach it."""
        if self in _running:
            self.stop(0.0)

    def end_with_script(self) -> None:
        """End the program together with the script; report it if the program was still at work."""
        at_work = self._conductor.supervisor.outcome is ProgramOutcome.RUNNING
        unfinished = [f"{each.name}.{each.replica}" for each in self._conductor.supervisor.awaited]
        self.stop(_GRACE_ON_ERROR_S)
        if at_work and self._conductor.error is None:
            left_running(self.name, self._launched, unfinished)

    # As the target of the hosting: passed on to the conductor

    def heard(self, name: UnitName, message: Any, parts: Sequence[Part] = ()) -> None:
        """A unit's host sent a message."""
        self._conductor.heard(name, message, parts)

    def ended(self, name: UnitName, record: DeathRecord | None, problem: str) -> None:
        """A unit has ended."""
        unit = self._conductor.units.find(name)
        if unit and self._caller and unit.address and not self._hosting.shares_host:
            caller, address = self._caller, unit.address
            self._hosting.loop.call_later(LAST_WORDS_S, lambda: caller.lose(address, "its process has ended"))
        self._conductor.ended(name, record, problem)

    def leaving(self, name: UnitName, why: str) -> None:
        """The host of a unit is about to be taken away."""
        self._conductor.leaving(name, why)

    def happened(self, text: str, kind: str = "") -> None:
        """Something happened that a user should know."""
        self._conductor.happened(text, kind)

    def lost(self, error: Exception) -> None:
        """No more units can be started."""
        self._conductor.lost(error)

    # Smaller steps

    def _kill(self, unit: str, replica: int) -> bool:
        def end() -> bool:
            killed = self._conductor.units.at(unit, replica)
            if killed is None:
                self._conductor.supervisor.check_replica(unit, replica)
                return False
            return self._hosting.signal(killed.name, signal.SIGKILL)

        return self._call(end)

    def _spec(self, node: str | Handle[Any]) -> NodeSpec:
        name = node.name if isinstance(node, Handle) else node
        spec = self._specs.get(name)
        if spec is None:
            raise ValueError(f"program {self.name!r} has no node {name!r}; it has {', '.join(self._specs)}")
        return spec

    def _subscribe(self, service: str) -> None:
        self._hosting.loop.call_soon(lambda: self._conductor.announcer.subscribe(service, LAUNCHER, None))

    def _before_waiting(self) -> None:
        self._look_at_loop()
        if self._caller:
            self._caller.loop.hand_over()

    def _own_caller(self) -> Caller:
        with self._caller_lock:
            if self._is_ending:
                raise self._has_ended()
            if self._caller is None:
                loop = self._hosting.loop
                if not self._hosting.shares_host:  # the session's loop runs no user code
                    loop = self._client_loop = LoopWithDeputies()
                    loop.start("ropewalk-client")
                hosting = self._hosting
                self._caller = Caller(loop, self._view, hosting.run_id, LAUNCHER, hosting.handover, hosting.passport)
            return self._caller

    def _call(self, call: Callable[[], T]) -> T:
        """Make a call on the loop, and return its result."""
        if self._hosting.loop.is_here:
            return call()
        if self._over.is_set():  # the loop of a session goes on without this program
            raise self._has_ended()
        done = threading.Event()
        results: list[T] = []
        errors: list[BaseException] = []

        def make() -> None:
            try:
                results.append(call())
            except BaseException as error:
                errors.append(error)
            finally:
                done.set()

        self._hosting.loop.call_soon(make)
        while not done.wait(0.1):
            self._look_at_loop()
            if self._over.is_set():
                break
        if errors:
            raise errors[0]
        if not results:
            raise self._has_ended()
        return results[0]

    @property
    def _is_ready_or_over(self) -> bool:
        return self._conductor.is_ready or self._over.is_set()

    def _wait_over(self, timeout_s: float | None) -> bool:
        due = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        while not self._conductor.changed.wait_until(self._over.is_set, min(due - time.monotonic(), _LOOK_S)):
            if time.monotonic() >= due:
                return False
            self._look_at_loop()
        return True

    def _look_at_loop(self) -> None:
        """End the program if its loop has ended: nothing could happen any more.

        A session tells its programs before it ends. This handles a session that ended just when the program began, so
        that the program was not told.
        """
        if self._pid != os.getpid():
            raise ProgramStopped(
                f"program {self.name!r} belongs to process {self._pid}, from which this one ({os.getpid()}) was "
                "forked; use it there"
            )
        if not self._hosting.loop.ended.is_set() or self._conductor.supervisor.done:
            return
        with self._loop_lost:  # in place of the loop: one thread at a time
            error = PoolClosed(f"the session of program {self.name!r} was closed while it ran")
            self._conductor.lost(error)
            for unit in self._conductor.units:
                self._conductor.ended(unit.name, None, str(error))

    def _has_ended(self) -> ProgramStopped:
        return ProgramStopped(
            f"{self._end_in_words()}, and all of its nodes with it; "
            "what is wanted of a service has to be asked before, such as by a worker"
        )

    def _end_in_words(self) -> str:
        """How the program has ended, and why, in a sentence."""
        _, _, why = self._conductor.supervisor.why_it_ends.partition(": ")
        return f"program {self.name!r} has ended ({reporting.state_of(self._conductor)}{why and f': {why}'})"

    def _awaited_in_words(self) -> str:
        """What the program has to wait for before it is complete, in a sentence."""
        awaited = [_in_state(each) for each in self._conductor.supervisor.awaited]
        more = [counted(len(awaited) - _MOST_TOLD, "other")] if len(awaited) > _MOST_TOLD else []
        if not awaited:
            return f"program {self.name!r} runs until it is stopped: it has no node that completes by itself"
        return f"program {self.name!r} waited for the end of {', '.join(awaited[:_MOST_TOLD] + more)}"

    def _raise_failure(self) -> None:
        conductor = self._conductor
        self._untold.told()
        if conductor.session_error and conductor.supervisor.outcome is not ProgramOutcome.COMPLETED:
            raise conductor.session_error
        if conductor.error and conductor.supervisor.done:
            raise conductor.error.with_traceback(None)  # it may have been raised before

    def _end_soon(self) -> None:
        threading.Thread(target=self._end, name="ropewalk-program-end", daemon=True).start()

    def _end(self) -> None:
        """Release everything, after the last unit has ended."""
        why = self._end_in_words()
        states = self._states.close if self._states else self._remove_states
        for step in (
            self._rows.end,
            lambda: self._view.end(why),
            self._control.close,
            lambda: self._end_clients(why),
            self._conductor.states.close,
            states,
            self._mark_output,
            self._hosting.close,
            self._packed.close,
        ):
            try:
                step()
            except Exception:  # the others release what is theirs, and waiting threads are woken, in any case
                traceback.print_exc()
        with contextlib.suppress(ValueError):
            _running.remove(self)
        if self._conductor.error:
            self._untold.failed(self._conductor.error)
        self._over.set()
        self._conductor.changed.ring()

    def _mark_output(self) -> None:
        self._wait_for_output = self._hosting.output_so_far()

    def _end_clients(self, why: str) -> None:
        with self._caller_lock:
            self._is_ending = True
        if self._caller:
            self._caller.close(why)
        if self._client_loop:
            self._client_loop.stop()
            self._client_loop.ended.wait(1.0)

    def _remove_states(self) -> None:
        shutil.rmtree(self._conductor.checkpoints, ignore_errors=True)


def _in_state(status: ReplicaStatus) -> str:
    """The name of a replica, with its state if it does not run."""
    state = "" if status.state is ReplicaState.READY else f" ({status.state.value})"
    return f"{status.name}.{status.replica}{state}"


def _stop_all() -> None:
    with contextlib.suppress(KeyboardInterrupt):  # the session, which ends next, kills what this would wait for
        for running in list(_running):
            running.end_with_script()
    UntoldFailure.tell_all()
