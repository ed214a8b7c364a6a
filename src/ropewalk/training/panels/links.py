"""The panel "links": the bytes that workers send to each other.

Data:

    {"links": {"0.0 -> 1.0": {"total_bytes": 1000, "step_bytes": 10.0, "planned_step_bytes": 10.0}, ...}}

Activations, their gradients and, without an exchange, the sums of gradients over replicas are among them. "total_bytes"
count from the deployment of the plan, "step_bytes" are the mean of all steps since, and "planned_step_bytes" is None if
the plan has no prediction, and between replicas of the same stages, since it is without sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ropewalk.pipeline.plans import Plan, PlanWorker
from ropewalk.training.report import predicted_link_bytes
from ropewalk.training.worker_sample import WorkerSample


def links_panel(plan: Plan, samples: Mapping[PlanWorker, WorkerSample]) -> dict[str, Any]:
    """Return the data of the panel.

    Args:
        plan: the plan that runs.
        samples: of the workers.
    """
    return {
        "links": {
            f"{worker} -> {other}": {
                "total_bytes": total_bytes,
                "step_bytes": total_bytes / max(1, sample.num_steps),
                "planned_step_bytes": predicted_link_bytes(plan, plan.prediction, worker, other),
            }
            for worker, sample in sorted(samples.items())
            for other, total_bytes in sorted(sample.sent_bytes.items())
            if total_bytes
        }
    }
