"""`TrialPool`: a pool whose workers work on trials, and the way of their records to the launcher.

    session ─▶ records of its processes ─▶ LauncherRecords ─▶ sink
       └─────▶ Pool

The listener is there before the workers are: processes that are started while nobody listens keep no records.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from ropewalk.engines.resources import Resources
from ropewalk.pool.pool import Pool
from ropewalk.processes.messages import IF_THERE
from ropewalk.processes.session import Session
from ropewalk.processes.shared_sessions import leased
from ropewalk.tracking.launcher_records import LauncherRecords, RunsOf
from ropewalk.tracking.records import RecordSink

_OURS = f"ropewalk.search.trial_task{IF_THERE}"
"""Imported once by the fork server of a host, and not by each worker; its import takes longer than a short trial. A
worker that cannot import it reports why."""


@dataclass(frozen=True, slots=True)
class TrialWorkers:
    """Which workers a search has.

    Attributes:
        num: number of workers.
        name: name of their pool, which no other has.
        engine: where they run; None: the setting.
        session: the session to use; None: the shared one of the engine.
        resources: what each of them needs.
        preload: modules that they share from the start.
    """

    num: int
    name: str
    engine: str | None = None
    session: Session | None = None
    resources: Resources | None = None
    preload: tuple[str, ...] = ()


class TrialPool:
    """A pool, the session that it holds, and what listens to its workers.

    Args:
        workers: which workers.
        sink: takes their records.
        runs_of: returns the runs to which a worker may write.
        at_most_once: whether a task whose worker dies fails, instead of being run again.

    Attributes:
        pool: the pool.
        session: its session.
    """

    def __init__(self, workers: TrialWorkers, sink: RecordSink, runs_of: RunsOf, *, at_most_once: bool) -> None:
        with contextlib.ExitStack() as stack:
            self.session: Session = leased(workers.session, engine=workers.engine)
            stack.callback(self.session.release)
            received = LauncherRecords(self.session.records.listen, sink, runs_of)
            stack.callback(received.close)
            self.pool: Pool = Pool(
                workers.num,
                session=self.session,
                resources=workers.resources,
                preload=(_OURS, *workers.preload),
                at_most_once=at_most_once,
                name=workers.name,
            )
            stack.callback(self.pool.join)
            stack.callback(self.pool.terminate)
            self._stack = stack.pop_all()

    def close(self) -> None:
        """End the workers, and take their last records; may be called twice."""
        self._stack.close()


__all__ = ["TrialPool", "TrialWorkers"]
