"""`RunningSearch`: a search, as other terminals and the page see it while it runs.

Its workers are in the view of their pool, whose name is among the facts. A search by population based training shows
the panels of its population besides its own; the population is not shown by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from ropewalk.control.loop_target import LoopTarget, in_order
from ropewalk.control.view import Observable, View
from ropewalk.population.rows import RESERVED
from ropewalk.population.view import time_left
from ropewalk.search.book import Line
from ropewalk.search.trial_facts import TrialFacts
from ropewalk.search.trial_result import TrialResult
from ropewalk.search.view import Objective, event_of, facts_of, progress_of, state_of, trials_panel
from ropewalk.tracking import records

_OF_POPULATION = ("generation", "evaluations", "evaluations_per_s")
"""Facts of every population that a search shows too, besides those of the algorithm."""
_OTHERS = RESERVED | {"fitness", "under_way", "env_steps"}


class RunningSearch(LoopTarget):
    """Shows what a search knows, whenever somebody looks; until then it only notes events.

    Args:
        name: name of the search.
        run: id of its run.
        pool: name of the pool of its workers; "" if it has none.
        objective: what decides.
        total: number of trials that it is limited to; None: none.
        trials: returns the trials by number.
        ask: has the search pause.
        part: returns the population that carries it out; None if there is none, or none yet.

    Attributes:
        kind: see `ControlTarget`.
        id: see `ControlTarget`.
    """

    def __init__(
        self,
        name: str,
        run: str,
        pool: str,
        objective: Objective,
        total: int | None,
        trials: Callable[[], Sequence[TrialFacts | TrialResult]],
        ask: Callable[[str], object],
        part: Callable[[], Observable | None] = lambda: None,
    ) -> None:
        super().__init__("search")
        self._name, self._run, self._pool = name, run, pool
        self._objective, self._total = objective, total
        self._trials, self._ask, self._part = trials, ask, part
        self._began, self._before = time.monotonic(), self._progress() or 0.0

    def _progress(self) -> float | None:
        return progress_of(list(map(state_of, self._trials())), self._total)

    @property
    def name(self) -> str:
        """Name of the search."""
        return self._name

    def line(self, line: Line) -> None:
        """Note a line of the log of the search."""
        if (event := event_of(line)) is not None:
            self.happened(*event)
            if line[0] == "fail":
                self._last_failure = event[1]

    def ended(self, state: str, why: str) -> None:
        """Note how it has ended.

        Args:
            state: state of its run.
            why: the cause; "" if it is complete.
        """
        self._state = {records.DONE: "completed", records.FAILED: "failed"}.get(state, "stopped")
        self._last_failure = why if state == records.FAILED else self._last_failure
        self._over.set()

    def act(self, action: str, process: str) -> str:
        """See `ControlTarget`."""
        if action not in ("pause", "stop") or process:
            raise ValueError(f"a search can be asked to pause or to stop as a whole, not {action!r} {process}".rstrip())
        if self._over.is_set():
            return f"the search had ended already: it has {self._state}"
        self._ask(action)
        self._state = "stopping"
        return "its trials pause at their next step, then the search ends; the same command goes on with it"

    def stop(self, grace_s: float | None) -> None:
        """Have all trials pause, and return when the search has ended."""
        self.act("stop", "")
        self._over.wait()

    def view(self, panels: dict[str, int]) -> View:
        """See `Observable`."""
        trials, part = list(self._trials()), self._part()
        states = list(map(state_of, trials))
        facts = facts_of(trials, states, self._total, self._objective)
        if self._pool:
            facts["pool"] = self._pool
        data = {"trials": trials_panel(trials, self._objective)} if "trials" in panels else {}
        progress = progress_of(states, self._total)
        view = self._seen(
            facts=facts,
            progress=progress,
            left_s=time_left(progress, time.monotonic() - self._began, self._before),
            panels=data,
            offers=("trials",),
            actions=("pause", "stop"),
        )
        return with_part(view, part.view(panels)) if part else view


def with_part(whole: View, part: View) -> View:
    """Return the view of a search with that of the population that carries it out.

    The fitness of a population is the metric to be maximised: the facts are those of the search, where both have one.
    """
    facts = {name: value for name, value in part.facts.items() if name in _OF_POPULATION or name not in _OTHERS}
    return replace(
        whole,
        progress=part.progress,
        left_s=part.left_s,
        facts=whole.facts | {name: value for name, value in facts.items() if name not in whole.facts},
        last_failure=whole.last_failure or part.last_failure,
        events=in_order(whole.events, part.events),
        panels=part.panels | whole.panels,
        offers=(*whole.offers, *part.offers),
    )


__all__ = ["RunningSearch"]
