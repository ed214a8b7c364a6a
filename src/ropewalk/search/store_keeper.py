"""`StoreKeeper`: keeps a search in a store of runs, and finds it there again.

search   a run of kind "search": its settings as the config, each line of the book as an event
trials   runs of kind "trial" whose parent is the search; their ids are those of the search and their numbers
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ropewalk.errors import SearchInvalid, StoreError
from ropewalk.launcher_claim import LauncherClaim
from ropewalk.search.book import Line
from ropewalk.search.lost_launcher import running_search
from ropewalk.search.results import run_of_trial
from ropewalk.search.search_keeper import SearchRequest
from ropewalk.search.trial_facts import TrialFacts, TrialState
from ropewalk.search.trial_task import TrialTask
from ropewalk.tracking import records
from ropewalk.tracking.artifacts import keep_files
from ropewalk.tracking.facts import code_to_copy, this_process
from ropewalk.tracking.records import (
    AttemptEnded,
    ConfigIs,
    EventHappened,
    LabelsAre,
    Metrics,
    RecordSink,
    RunCreated,
    StateIs,
)
from ropewalk.tracking.run_checkpoints import UnkeptFiles
from ropewalk.tracking.store.own_runs import own_runs
from ropewalk.tracking.store.rows import LOST, RunRow
from ropewalk.tracking.store.store import RunStore

logger = logging.getLogger(__name__)

DECISION = "decision"
"""Kind of the events that are lines of a book."""
_STATES = {
    TrialState.RUNNING: records.RUNNING,
    TrialState.WAITING: records.QUEUED,
    TrialState.PAUSED: records.PAUSED,
    TrialState.DONE: records.DONE,
    TrialState.STOPPED: records.STOPPED,
    TrialState.FAILED: records.FAILED,
}
_HERE = -1
"""Number of requests that are not in the store."""
_UNFINISHED = (LOST, records.PAUSED, records.STOPPED, records.QUEUED)


class StoreKeeper:
    """Keeps one search.

    Args:
        store: the store, for requests from other terminals.
        sink: takes the records of the search.
        run: id of the search's run.
        project: project of all its runs.
        name: name of the search.
        folder: folder in which each run has its own.
    """

    def __init__(self, store: RunStore, sink: RecordSink, run: str, project: str, name: str, folder: Path) -> None:
        self._store, self._sink = store, sink
        self.run, self.project, self.name, self.folder = run, project, name, folder
        self._open: dict[str, int] = {}
        """Runs of trials that have not ended, with their numbers; for those that have, the store answers requests."""
        self._owner = this_process()
        self._has_warned = False
        self._unanswered: list[tuple[SearchRequest, bool, str]] = []
        """Answers that could not be written: that is tried again."""
        self._seen: set[int] = set()
        """Requests that were answered, or are about to be."""
        self.told: Callable[[Line], object] = ignored
        """Called with each line of the book."""
        self._asked: deque[str] = deque()
        """Actions for the search as a whole that this process was asked for, and not through the store."""

    # --- the search ---------------------------------------------------------------------------------------------------

    def create(self, config: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        """Create the run of the search."""
        folder = self.folder / self.run
        created = RunCreated(
            self.project, self.name, "search", time.time(), dict(config), dict(facts), folder=str(folder)
        )
        self._put(created)
        if script := code_to_copy(facts):
            kept = keep_files(
                script, f"code/{script.name}", folder / "artifacts", step=None, copy=True, failed=self._not_kept
            )
            for record in kept:
                self._put(record)

    def _not_kept(self, what: str, error: OSError) -> None:
        UnkeptFiles(self.name, self._put).tell(what, error)

    def change(self, config: Mapping[str, Any]) -> None:
        """The search goes on with these settings."""
        self._put(ConfigIs(dict(config)))

    def begin(self) -> None:
        """This process owns the search from now on."""
        self._put(self._owner)
        self._put(StateIs(records.RUNNING, time.time()))

    def go_on(self, trials: Sequence[TrialFacts]) -> None:
        """Take over trials of an earlier launcher that have not ended: requests for them, and attempts that it lost."""
        self._open |= {run_of_trial(self.run, each.number): each.number for each in trials if not each.state.is_final}
        for trial in trials:
            if trial.state is TrialState.WAITING:
                run = run_of_trial(self.run, trial.number)
                for attempt in self._store.attempts(run):
                    if not attempt.outcome:
                        self._sink.put(run, attempt.ended_unseen())

    def heartbeat(self) -> None:
        """Say that the search still runs."""
        self._put(self._owner)

    def line(self, line: Line) -> None:
        """Keep a line of the book."""
        self.told(line)
        self._put(EventHappened(DECISION, "", time.time(), {"line": line}))

    def event(self, kind: str, text: str) -> None:
        """Put something on the time line of the search."""
        self._put(EventHappened(kind, text, time.time()))

    def end(self, state: str, why: str = "") -> None:
        """The search ends, or pauses."""
        self._put(StateIs(state, time.time(), why))

    # --- trials -------------------------------------------------------------------------------------------------------

    def begun(self, task: TrialTask, facts: TrialFacts) -> None:
        """An attempt is about to begin."""
        now = time.time()
        if facts.attempts == 1:
            config = dict(facts.hyperparameters)
            created = RunCreated(
                self.project, task.name, "trial", now, config, {"seed": task.seed}, [], self.run, None, str(task.folder)
            )
            self._sink.put(task.run, created)
        self._open[task.run] = task.trial
        self._sink.put(task.run, self._owner)
        self._sink.put(task.run, StateIs(records.RUNNING, now))

    def changed(self, facts: TrialFacts) -> None:
        """A trial is not under way any more."""
        run = run_of_trial(self.run, facts.number)
        if facts.state.is_final:
            self._open.pop(run, None)
        else:
            self._open[run] = facts.number
        self._sink.put(run, StateIs(_STATES[facts.state], time.time(), facts.why))

    def best(self, metric: str, value: float, trial: int, num_trials: int) -> None:
        """A trial has become the best one: lists of runs show it, and the report of the search its curve."""
        names, values = [f"best {metric}", records.BEST_TRIAL], [float(value), float(trial)]
        self._put(Metrics("", names, values, float(num_trials), time.time()))

    def died(self, task: TrialTask, cause: str, failure_class: str, at_step: float) -> None:
        """The process of an attempt has died."""
        self._sink.put(task.run, AttemptEnded(task.attempt, "lost", time.time(), cause, failure_class, at_step))

    def labelled(self, task: TrialTask, labels: Sequence[str]) -> None:
        """A log policy has given a trial labels."""
        self._sink.put(task.run, LabelsAre(list(labels)))

    def excluded(self, task: TrialTask, host: str, lines: Sequence[tuple[str, str]]) -> None:
        """Log policies keep a trial off a host."""
        text = f"{host}: {'; '.join(line.strip() for _, line in lines)}"
        data = {"host": host, "patterns": [pattern for pattern, _ in lines]}
        self._sink.put(task.run, EventHappened("host excluded", text, time.time(), data))

    # --- other terminals ----------------------------------------------------------------------------------------------

    def ask(self, action: str) -> None:
        """Put a request for the search as a whole beside those in the store; from any thread."""
        self._asked.append(action)

    def requests(self) -> Sequence[SearchRequest]:
        """Return what was asked since the last call; of the store nothing while it cannot be read."""
        unanswered, self._unanswered = self._unanswered, []
        for request, ok, text in unanswered:
            self.answer(request, ok, text)
        asked = [SearchRequest(_HERE, None, self._asked.popleft()) for _ in range(len(self._asked))]
        return [*asked, *self._stored_requests()]

    def _stored_requests(self) -> Sequence[SearchRequest]:
        trials = dict(self._open)
        try:
            rows = self._store.requests([self.run, *trials])
        except StoreError as error:
            if not self._has_warned:
                self._has_warned = True
                logger.warning("requests from other terminals cannot be read: %s", error)
            return []
        new = [row for row in rows if row.number not in self._seen]
        self._seen.update(row.number for row in new)
        return [SearchRequest(row.number, trials.get(row.run), row.action) for row in new]

    def answer(self, request: SearchRequest, ok: bool, text: str) -> None:
        """Answer a request."""
        if request.number == _HERE:
            return
        try:
            self._store.answer(request.number, ok, text)
        except StoreError as error:
            logger.warning("request %d (%s) could not be answered so far: %s", request.number, request.action, error)
            self._unanswered.append((request, ok, text))

    def _put(self, record: records.Record) -> None:
        self._sink.put(self.run, record)


def ignored(line: Line) -> None:
    """Take a line of which nobody wants to be told: do nothing."""


def unfinished_search(
    store: RunStore, project: str, name: str, folder: Path | None = None, lost: str = ""
) -> tuple[RunRow, LauncherClaim] | None:
    """Claim this user's newest search of this name that can go on, and on which no other launcher works.

    Args:
        store: the store.
        project: project of the search.
        name: its name.
        folder: folder in which each run has its own, if the user names one.
        lost: the id of a search that can go on although it counts as running; see `wait_for_lost_launcher`.

    Returns:
        The search and the claim; None if there is none.
    """
    rows = store.runs(project=project, kind="search", states=(*_UNFINISHED, records.RUNNING), order="-created")
    that_may = (row for row in rows if row.name == name and (row.state in _UNFINISHED or row.id == lost))
    for row in own_runs(store, that_may, folder):
        if (claim := LauncherClaim.on(Path(row.folder))) is not None:
            now = store.run(row.id)  # another launcher may have gone on with it, and ended, since it was found
            if now.state in _UNFINISHED or (now.id == lost and now.heard == row.heard):
                return now, claim
            claim.close()
    return None


def complete_search(
    store: RunStore,
    project: str,
    name: str,
    config: Mapping[str, Any],
    free: Sequence[str],
    folder: Path | None = None,
) -> tuple[tuple[RunRow, LauncherClaim] | None, str]:
    """Claim this user's newest complete search of this name, if it is asked for more trials than it has had.

    Args:
        store: the store.
        project: project of the search.
        name: its name.
        config: its settings now.
        free: settings that may differ from those that it had.
        folder: as of `unfinished_search`.

    Returns:
        The search and the claim, or None; and why the search of this name does not go on, "" if there is none.
    """
    rows = store.runs(project=project, kind="search", states=(records.DONE,), order="-created")
    row = next(own_runs(store, (row for row in rows if row.name == name), folder), None)
    if row is None:
        return None, ""
    if any(row.config.get(each) != config[each] for each in config if each not in free):
        return None, f"the complete search of this name ({row.id}) has other settings, so a new one begins"
    had, wanted = row.config.get("trials"), config["trials"]
    if not isinstance(had, int) or not isinstance(wanted, int) or wanted <= had:
        many = "" if not isinstance(had, int) else f" with {had} trials"
        return (
            None,
            f"the search of this name ({row.id}) is complete{many}, so a new one begins; a larger trials= goes on",
        )
    if (claim := LauncherClaim.on(Path(row.folder))) is None:
        return None, ""
    if (now := store.run(row.id)).state == records.DONE:  # another launcher may have gone on with it since it was found
        return (now, claim), ""
    claim.close()
    return None, ""


def told_of_running(store: RunStore, project: str, name: str, folder: Path | None = None) -> str:
    """Return words for a search of this name on which another launcher works now; "" if there is none."""
    if (row := running_search(store, project, name, folder)) is None:
        return ""
    owner = f" in process {row.owner.pid} on {row.owner.host}" if row.owner else ""
    return f"a search of this name ({row.id}) is running{owner}, so a new one begins beside it"


def lines_of(store: RunStore, run: str) -> list[Line]:
    """Return the lines of the book of a search."""
    return [event.data["line"] for event in store.events(run) if event.kind == DECISION]


def check_same(row: RunRow, config: Mapping[str, Any], free: Sequence[str] = ()) -> list[str]:
    """Compare a search with the one that it would continue.

    Args:
        row: the earlier search.
        config: the settings now.
        free: settings that may differ.

    Returns:
        What differs among those that may.

    Raises:
        SearchInvalid: something else differs.
    """
    differing = [name for name in config if row.config.get(name) != config[name]]
    told = [f"{name} was {row.config.get(name)!r} and is {config[name]!r}" for name in differing]
    if fixed := [text for name, text in zip(differing, told, strict=True) if name not in free]:
        raise SearchInvalid(
            f"search {row.name!r} ({row.id}) is unfinished, and cannot go on with other settings: {'; '.join(fixed)}. "
            "Give this one another name=, or start over with resume=False"
        )
    return told
