"""Repeats an asynchronous run in one process, from the log of its decisions."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ropewalk.rl.actors.collector import Collector
from ropewalk.rl.adders.adder import Adder
from ropewalk.rl.assembly import Assembly
from ropewalk.rl.decision_log import Event, read_decisions
from ropewalk.rl.learner_updates import LearnerUpdates
from ropewalk.rl.logs.logger import Logger
from ropewalk.rl.progress import ProgressLog
from ropewalk.rl.result import ExperimentResult, TrainingOutcome
from ropewalk.rl.schedules import progress_after
from ropewalk.rl.torch_threads import one_torch_thread
from ropewalk.rl.variables import Variables

if TYPE_CHECKING:
    from ropewalk.rl.experiment import Experiment


def repeat(experiment: Experiment, path: Path | str, logger: Logger) -> ExperimentResult:
    """Do again what the log says, in its order; weights get the same bits.

    Raises:
        ValueError: the log is of another experiment, or damaged.
    """
    groups, events = read_decisions(path, experiment.in_words())
    with one_torch_thread():
        repetition = _Repetition(Assembly(experiment, groups), events, logger)
        try:
            return repetition.run()
        finally:
            repetition.close()


class _Repetition:
    def __init__(self, assembly: Assembly, events: Sequence[Event], logger: Logger) -> None:
        self._assembly, self._events = assembly, events
        experiment = assembly.experiment
        self._spec = assembly.spec()
        self._updates = LearnerUpdates(assembly.learner(self._spec), self._hold_back, experiment.digest_every)
        self._learner, self._counters = self._updates.learner, self._updates.counters
        self._tables = assembly.tables(self._spec)
        self._log = ProgressLog(logger, experiment.steps)
        self._streams: dict[str, tuple[Collector, Adder]] = {}
        self._uses = Counter(event[3] for event in events if event[0] in ("insert", "stale"))
        """Blocks that are still to be collected with each version."""
        self._published: dict[int, Variables] = {}
        self._newest = Variables(0, 0.0, {})
        self._priorities: tuple[NDArray[np.int64], NDArray[np.float64]] | None = None
        """Keys and new priorities of the last batch, until the log says that they were written."""

    def run(self) -> ExperimentResult:
        """Do all of it."""
        for event in self._events:
            match event:
                case ["insert" | "stale" as kind, str(run_id), int(), int(version)]:
                    self._insert(run_id, version, stale=kind == "stale")
                case ["sample", int(num_items)]:
                    self._update(num_items)
                case ["priorities"]:
                    assert self._priorities is not None
                    self._tables.update_priorities(self._assembly.experiment.agent.table, *self._priorities)
                case ["publish", int(version), int(steps)]:
                    self._publish(version, steps)
                case _:
                    raise ValueError(f"the log of decisions has {event}, which is not an event of a run")
        self._log.progress(self._counters, self._updates.metrics, label="end")
        outcome = TrainingOutcome(self._newest, self._counters, tuple(self._updates.digests))
        return ExperimentResult(outcome, self._log.rows, self._log.seconds, self._assembly)

    def close(self) -> None:
        """Close the environments."""
        for collector, _ in self._streams.values():
            collector.close()

    def _insert(self, run_id: str, version: int, *, stale: bool) -> None:
        group, _, life = run_id.partition("#")
        if run_id not in self._streams:
            self._end_earlier_life(group)
            policy = self._assembly.policy(self._spec, int(group))
            collector = self._assembly.collector(policy, int(group), life=int(life))
            self._streams[run_id] = collector, self._assembly.experiment.agent.make_adder(self._spec)
        collector, adder = self._streams[run_id]
        collector.load(self._published[version])
        block = collector.collect(self._assembly.experiment.agent.unroll)
        self._uses[version] -= 1
        self._drop_unused()
        insertion = adder.add(block)
        if stale:
            self._tables.insert(dataclasses.replace(insertion, items={}))
            self._counters.stale_steps += block.steps
        else:
            self._tables.insert(insertion)
            self._counters.add(block.steps, block.episodes)

    def _end_earlier_life(self, group: str) -> None:
        """Close the environments of the life before, of which nothing comes any more, and let its rows go."""
        for run_id in [each for each in self._streams if each.partition("#")[0] == group]:
            collector, _ = self._streams.pop(run_id)
            collector.close()
            self._tables.end_stream(run_id)

    def _update(self, num_items: int) -> None:
        experiment = self._assembly.experiment
        batch = self._tables.sample(experiment.agent.table, num_items)
        self._updates.update(batch, progress_after(self._counters.steps, experiment.steps), self._newest.version)
        self._log.progress(self._counters, self._updates.metrics)

    def _hold_back(self, keys: NDArray[np.int64], priorities: NDArray[np.float64]) -> None:
        self._priorities = keys, priorities

    def _publish(self, version: int, steps: int) -> None:
        progress = progress_after(steps, self._assembly.experiment.steps)
        self._newest = self._published[version] = Variables(version, progress, self._learner.variables())
        self._drop_unused()

    def _drop_unused(self) -> None:
        self._published = {
            version: each for version, each in self._published.items() if self._uses[version] or each is self._newest
        }


__all__ = ["repeat"]
