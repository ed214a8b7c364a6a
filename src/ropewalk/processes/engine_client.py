"""The engine client of a loop: it asks from threads, one at a time, because an engine's answers may take long.

Whatever an engine raises becomes an `EngineError` here: in these threads nothing else would be told to anybody, and
those who wait for the engine would wait for ever.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence

from ropewalk.engines.engine import Engine, HostSlots, JobSpec, JobState, JobStatus, Reach
from ropewalk.engines.resources import HostCapacity, Resources
from ropewalk.errors import EngineError, RopewalkError
from ropewalk.quantities import counted
from ropewalk.transport.loop import Loop

logger = logging.getLogger(__name__)

_END_S = 3.0
"""How long agents may take to end their processes and themselves when the session ends, in seconds."""
_CLOSE_TOLD_S, _CLOSE_S = 5.0, 15.0
"""Seconds after which the end of a session says what it waits for, and after which it waits for its engine no longer.
Engines answer within 5 s if they answer; their own timeouts, one after the other, took a minute."""
_POLL_HERE_S, _POLL_S = 0.001, 0.2
"""Poll intervals in seconds: agents on this machine end within milliseconds; those of a cluster are asked about less
often."""
_AGAIN_S = 1.0
"""Seconds after which a thread is started again where there was none."""
_SAID_CHARS = 2000
"""At most this many characters of a job's output are shown."""


class EngineClient:
    """Asks an engine on behalf of a fleet. After `close` nothing is asked any more.

    Args:
        engine: the engine, called by one thread at a time.
        loop: the loop on which callbacks are called.
    """

    def __init__(self, engine: Engine, loop: Loop) -> None:
        self._engine = engine
        self._loop = loop
        self.reach = engine.reach
        self.python = engine.python
        self.most_jobs = engine.most_jobs()
        self.per_job: dict[Resources, int | None] = {}
        """How many processes of a kind fit into one job, for the kinds about which the engine was asked."""
        self.places: HostSlots | None = None
        """The engine's hosts, if it has a fixed number of them and was asked about any kind of processes."""
        self.closed = False
        self._lock = threading.Lock()
        self._asking: dict[Resources, list[Callable[[EngineError | None], object]]] = {}
        """Kinds of processes about which the engine is being asked, with the callbacks that wait for its answer."""
        self._asking_lock = threading.Lock()
        self._ending = "to end the jobs of the run"
        """What the engine is asked at the end, in words."""
        self._logged: set[str] = set()
        """Failures of the engine whose traceback was logged."""
        self._is_silent = False
        """Whether the last question about jobs had no answer."""

    def in_thread(self, call: Callable[[], None]) -> None:
        """Run a call that asks the engine, in a thread apart from the loop; from any thread."""
        try:
            threading.Thread(target=call, name="ropewalk-engine", daemon=True).start()
        except RuntimeError as error:  # no thread can be started at the moment, and others wait for what this finds out
            logger.warning("the engine %s is asked a second later: %s", self._engine.name, error)
            self._loop.call_soon(lambda: self._loop.call_later(_AGAIN_S, lambda: self.in_thread(call)))

    def prepare(self, resources: Resources, then: Callable[[EngineError | None], object]) -> None:
        """Ask the engine how many such processes fit into a job, once for each kind; from any thread.

        Args:
            resources: what each process asks for.
            then: called on the loop, with the engine's error if no host of it can hold even one.
        """
        with self._asking_lock:
            if resources in self.per_job:
                self._loop.call_soon(lambda: then(None))
                return
            waiting = self._asking.setdefault(resources, [])
            waiting.append(then)
            if len(waiting) > 1:
                return  # callbacks are called together, so that their processes are placed together

        def ask() -> None:
            num, places, problem = None, None, None
            try:
                with self._asked():
                    if not self.closed:
                        num, places = self._engine.per_job(resources), self._engine.places()
            except EngineError as error:
                problem = error
            with self._asking_lock:
                if problem is None:
                    self.per_job[resources], self.places = num, places
                told = self._asking.pop(resources)
            self._loop.call_soon(lambda: [then(problem) for then in told])

        self.in_thread(ask)

    # In threads that may block

    def submit(self, spec: JobSpec, run_id: str, request_id: str) -> str:
        """Submit one job; returns its id, or "" if nothing is submitted any more.

        Raises:
            EngineError: the engine refused.
        """
        with self._asked():
            return "" if self.closed else self._engine.submit(spec, 1, run_id, request_id)[0]

    def room(self, job: str) -> HostCapacity | None:
        """See `Engine.room`; None also if the engine does not say."""
        with contextlib.suppress(EngineError), self._asked():
            return None if self.closed else self._engine.room(job)
        return None

    def look(self, job: str) -> tuple[JobStatus, str] | None:
        """Return the state of a job and its output, unless it is only queued; None if the engine does not answer."""
        return self.look_at([job]).get(job)

    def look_at(self, jobs: Sequence[str]) -> dict[str, tuple[JobStatus, str]]:
        """Return what `look` does of each of several jobs, with one question; those without an answer are left out."""
        found: dict[str, tuple[JobStatus, str]] = {}
        states: Mapping[str, JobStatus] = {}
        with self._warned(), self._asked():
            states = {} if self.closed else self._engine.poll(jobs)
            found = {job: (status, "") for job, status in states.items() if status.state is JobState.PENDING}
        for job in states.keys() - found.keys():
            with self._warned(), self._asked():
                found[job] = states[job], "" if self.closed else self._engine.logs(job).strip()[-_SAID_CHARS:]
        return found

    @contextlib.contextmanager
    def _warned(self) -> Generator[None]:
        try:
            yield
        except EngineError as error:
            if not self._is_silent:  # it is asked again and again
                logger.warning("the engine does not answer: %s", error)
            self._is_silent = True
        else:
            self._is_silent = False

    def has_ended(self, job: str) -> bool:
        """Return whether the engine says that a job is over."""
        with contextlib.suppress(EngineError), self._asked():
            return self._engine.poll([job])[job].state in (JobState.ENDED, JobState.LOST)
        return False

    def door(self, job: str) -> str:
        """See `Engine.door`; the only method that several threads call at once.

        Raises:
            EngineError: the engine's connection to the job is gone.
        """
        with self._told():
            return self._engine.door(job)

    def end(self, job: str, *, was_told: bool) -> None:
        """End a job in any state; one that was told to end gets time to do so, and to clean up."""
        deadline = time.monotonic() + _END_S * was_told
        while time.monotonic() < deadline and not self.closed and not self.has_ended(job):
            time.sleep(_POLL_S)
        with contextlib.suppress(EngineError), self._asked():
            if job and not self.closed:
                self._engine.cancel([job])

    def close(self, run_id: str, jobs: Sequence[str], never_up: Sequence[str]) -> bool:
        """Wait until jobs have ended by themselves, cancel those that do not, and all others of the run.

        An engine that hangs, such as a controller that is down, is waited for up to `_CLOSE_S` seconds; its thread goes
        on as long as this process lives.

        Args:
            run_id: the run.
            jobs: the jobs that were told to end, and `never_up`.
            never_up: the jobs that cannot be told, and are cancelled at once.

        Returns:
            Whether the engine has done all of it; if it has not, jobs of the run may be left.
        """
        self.closed = True
        over: list[bool] = []

        def end() -> None:
            with contextlib.suppress(EngineError), self._asked():
                try:
                    over.append(self._end_all(run_id, jobs, never_up))
                finally:  # or its threads and connections would stay
                    self._engine.close()

        if self.reach is Reach.HERE:
            end()
            return any(over)
        thread = threading.Thread(target=end, name="ropewalk-engine-end", daemon=True)
        thread.start()
        thread.join(_CLOSE_TOLD_S)
        if thread.is_alive():
            logger.warning(
                "the engine %s has been asked for %g s %s; it is waited for up to %g s in all",
                self._engine.name, _CLOSE_TOLD_S, self._ending, _CLOSE_S,
            )  # fmt: skip
            thread.join(_CLOSE_S - _CLOSE_TOLD_S)
            if thread.is_alive():
                logger.warning(
                    "the engine %s was asked %s, has not answered, and is waited for no longer; agents that run end by "
                    "themselves, and `ropewalk stop %s --engine %s` ends jobs that are left",
                    self._engine.name, self._ending, run_id, self._engine.name,
                )  # fmt: skip
        return any(over)

    def _end_all(self, run_id: str, jobs: Sequence[str], never_up: Sequence[str]) -> bool:
        """See `close`; returns whether it was known which jobs the run had."""
        deadline = time.monotonic() + _END_S
        waited, is_known = list(jobs), False
        with contextlib.suppress(EngineError), self._told():  # a question without an answer ends no job
            if never_up:
                self._ending = f"to cancel {counted(len(never_up), 'job')} of run {run_id} that never began"
                self._engine.cancel(never_up)
            self._ending = f"which jobs run {run_id} has"
            waited += [job for job in self._engine.find(run_id) if job not in jobs]  # lost ones that still run
            is_known = True
            self._ending = f"whether {counted(len(waited), 'job')} of run {run_id} have ended"
            while time.monotonic() < deadline:
                states = self._engine.poll(waited)
                if all(status.state in (JobState.ENDED, JobState.LOST) for status in states.values()):
                    break
                time.sleep(_POLL_HERE_S if self.reach is Reach.HERE else _POLL_S)
        self._ending = f"to cancel what is left of {counted(len(waited), 'job')} of run {run_id}"
        self._engine.cancel(waited)
        return is_known

    def kill(self, jobs: Sequence[str]) -> None:
        """Cancel jobs at once, without waiting for anything."""
        self.closed = True
        with contextlib.suppress(EngineError), self._told():
            self._engine.cancel(jobs)

    @contextlib.contextmanager
    def _asked(self) -> Generator[None]:
        """Ask the engine within this block, while no other thread does; raises nothing but `EngineError`."""
        with self._lock, self._told():
            yield

    @contextlib.contextmanager
    def _told(self) -> Generator[None]:
        try:
            yield
        except EngineError:
            raise
        except RopewalkError as error:
            raise EngineError(str(error)) from error
        except Exception as error:  # a mistake in an engine, or an answer of the cluster that it does not expect
            words = f"the engine {self._engine.name} failed with {type(error).__name__}: {error}"
            if words not in self._logged:  # it may be asked again each second
                self._logged.add(words)
                logger.exception("the engine %s failed", self._engine.name)
            raise EngineError(f"{words}; the log has the traceback") from error
