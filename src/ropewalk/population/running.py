"""`RunningEvaluation`: a population that is being evaluated, as other terminals and the page see it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Any

from ropewalk.control.announcing import announced
from ropewalk.control.loop_target import LoopTarget
from ropewalk.control.view import View
from ropewalk.pool.pool import Pool
from ropewalk.population.algorithm import Algorithm, ignored
from ropewalk.population.decisions import Fail
from ropewalk.population.observing import take
from ropewalk.population.run import EvaluationLoop
from ropewalk.population.view import PopulationCounts, all_panels, facts_of, progress_of, time_left, wanted
from ropewalk.tracking.observed_run import ObservedRun

_PATIENCE_S = 0.5
"""Seconds that a look waits for the algorithm, which may compute for longer: the answer then is without its panels."""


class RunningEvaluation(LoopTarget):
    """Shows what an evaluation loop knows, whenever somebody looks; until then it does nothing.

    Args:
        algorithm: the algorithm.
        loop: evaluates it.
        watched: its run, which takes what it is asked for.
        fitness: name of the fitness function.
        generations: total number of generations; None for no limit.
        can_pause: whether checkpoints are written, from which it can go on.

    Attributes:
        kind: see `ControlTarget`.
        id: see `ControlTarget`.
    """

    def __init__(
        self,
        algorithm: Algorithm[Any],
        loop: EvaluationLoop,
        watched: ObservedRun,
        *,
        fitness: str,
        generations: int | None,
        can_pause: bool,
    ) -> None:
        super().__init__("population")
        self._algorithm, self._loop, self._watched = algorithm, loop, watched
        self._fitness, self._generations, self._can_pause = fitness, generations, can_pause
        self._run = watched.run.id if watched.run else ""
        self._panels = all_panels(loop.rows, algorithm.panels())
        self._pool = ""
        """Name of the pool that evaluates, in whose view the workers are; "" if it is none of Ropewalk."""

    @property
    def name(self) -> str:
        """Name of the algorithm's class."""
        return type(self._algorithm).__name__

    @contextlib.contextmanager
    def shown(self, pool: object, whole: ObservedRun | None = None) -> Generator[None]:
        """Let other terminals and the page see it while the block runs.

        Args:
            pool: that evaluates; a pool of Ropewalk has a session, by which it can be seen.
            whole: the run of what this is a part of, which shows it; None: it shows itself.
        """
        with contextlib.ExitStack() as stack:
            session = None
            if isinstance(pool, Pool):
                self._pool, session = pool.name, pool.session
            if whole is None:
                stack.enter_context(announced(self, session))
            else:
                whole.part = self
            self._algorithm.happened = self.happened
            stack.enter_context(self.noted())
            try:
                yield
            finally:
                self._algorithm.happened = ignored

    def failed(self, failure: Fail) -> None:
        """Note that an evaluation has failed."""
        self._last_failure = failure.why
        self.happened("", f"evaluation {failure.ticket.position} of ask {failure.ticket.ask} failed: {failure.why}")

    def view(self, panels: dict[str, int]) -> View:
        """See `Observable`; without the panels of an algorithm that computes for longer than half a second."""
        if not self._loop.changing.acquire(timeout=_PATIENCE_S):
            return self._view({name: cursor for name, cursor in panels.items() if name == "fitness"}, None)
        try:
            return self._view(panels, self._loop.num_under_way)
        finally:
            self._loop.changing.release()

    def act(self, action: str, process: str) -> str:
        """See `ControlTarget`."""
        if action not in self._actions:
            raise ValueError(f"{self.kind} {self.name} has no action {action!r}; it has {', '.join(self._actions)}")
        is_taken, text = take(self._watched, action, can_pause=self._can_pause)
        if not is_taken:
            raise ValueError(text)
        self._state = "stopping"
        return text

    def stop(self, grace_s: float | None) -> None:
        """Stop it after the generation in which it is, however long that takes."""
        self.act("stop", "")
        self._over.wait()

    @property
    def _actions(self) -> tuple[str, ...]:
        return ("stop", "pause") if self._can_pause else ("stop",)

    def _view(self, panels: dict[str, int], num_under_way: int | None) -> View:
        loop = self._loop
        rows = loop.rows
        counts = PopulationCounts(
            loop.num_evaluations,
            loop.num_failed,
            loop.num_dropped,
            num_under_way,
            loop.num_workers,
            loop.seconds,
        )
        facts = facts_of(rows, counts, self._generations, self._fitness)
        if self._pool:
            facts["pool"] = self._pool
        progress = progress_of(self._algorithm, rows, self._generations)
        return self._seen(
            facts=facts,
            progress=progress,
            left_s=time_left(progress, loop.seconds),
            panels=wanted(self._panels, panels),
            offers=self._panels,
            actions=self._actions,
        )


def name_of(function: Callable[..., object]) -> str:
    """Return the name of a fitness function, or of the class of an object that is called."""
    function = getattr(function, "func", function)  # of functools.partial
    return str(getattr(function, "__name__", type(function).__name__))


__all__ = ["RunningEvaluation", "name_of"]
