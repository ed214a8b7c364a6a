"""The panel "versions": which versions of its weights each stage has, and which of them micro-batches still need.

Data:

    {"schedule": "pipedream",
     "stages": [{"stage": 0, "worker": "0.0", "versions": [118, 119, 120], "held": {"118": 1, "119": 1}, "slots": 4,
                 "most": 4, "version_bytes": 1000000, "stashed_bytes": 2000000}, ...]}

The last of "versions" is the newest, on which the next update works; the others are stashed. "held" gives, by version,
the number of micro-batches between their forward and the end of their backward. "slots" is the number of versions for
which there is memory, and "most" the largest number at once so far.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ropewalk.pipeline.plans import Plan, PlanWorker
from ropewalk.pipeline.schedules.schedule import Schedule
from ropewalk.training.worker_sample import WorkerSample


def versions_panel(plan: Plan, schedule: Schedule, samples: Mapping[PlanWorker, WorkerSample]) -> dict[str, Any]:
    """Return the data of the panel.

    Args:
        plan: the plan that runs.
        schedule: the schedule that runs.
        samples: of the workers.
    """
    rows = [
        {
            "stage": one.stage,
            "worker": str(worker),
            "versions": list(one.versions),
            "held": {str(version): num for version, num in sorted(one.held.items())},
            "slots": one.slots,
            "most": one.most_versions,
            "version_bytes": one.version_bytes,
            "stashed_bytes": one.stashed_bytes,
        }
        for worker in plan.workers
        if worker in samples
        for one in samples[worker].stages
    ]
    return {"schedule": schedule.name, "stages": sorted(rows, key=lambda row: (row["stage"], row["worker"]))}
