"""The panel "memory": bytes on each worker, as planned, as its stages hold them, and as its process or device has them.

Data:

    {"workers": [{"name": "0.0", "stages": [0], "host": "n1", "device": "cpu",
                  "planned": {"weights": 1, "gradients": 1, "optimizer": 2, "stashed": 0, "buffers": 0,
                              "activations": 4},
                  "held": {"weights": 1, "optimizer": 2, "stashed": 0, "buffers": 0},
                  "process_bytes": 310000000, "device_bytes": None, "peak_device_bytes": None,
                  "limit_bytes": 8000000000}, ...]}

"planned" is None if the plan has no prediction. "held" is counted over the tensors of the stages; gradients and
activations are not counted, and on an accelerator are the rest of "peak_device_bytes". "limit_bytes" is the memory of
the accelerator, or that which the plan was made for; None: neither is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ropewalk.pipeline.plans import Plan, PlanWorker
from ropewalk.pipeline.prediction import MemoryUse
from ropewalk.training.worker_sample import WorkerSample


def memory_panel(plan: Plan, samples: Mapping[PlanWorker, WorkerSample]) -> dict[str, Any]:
    """Return the data of the panel.

    Args:
        plan: the plan that runs.
        samples: of the workers.
    """
    return {"workers": [_worker(plan, worker, samples[worker]) for worker in plan.workers if worker in samples]}


def _worker(plan: Plan, worker: PlanWorker, sample: WorkerSample) -> dict[str, Any]:
    stages = plan.groups[worker.group]
    limit_bytes = sample.device_limit_bytes
    if limit_bytes is None and plan.prediction is not None:
        limit_bytes = plan.prediction.memory_bytes
    return {
        "name": str(worker),
        "stages": list(stages),
        "host": sample.host,
        "device": "cpu" if sample.device_bytes is None else "gpu",
        "planned": _planned(plan, stages),
        "held": {
            "weights": sum(one.weight_bytes for one in sample.stages),
            "optimizer": sum(one.optimizer_bytes for one in sample.stages),
            "stashed": sum(one.stashed_bytes for one in sample.stages),
            "buffers": sum(one.buffer_bytes for one in sample.stages),
        },
        "process_bytes": sample.memory_bytes,
        "device_bytes": sample.device_bytes,
        "peak_device_bytes": sample.peak_device_bytes,
        "limit_bytes": limit_bytes,
    }


def _planned(plan: Plan, stages: tuple[int, ...]) -> dict[str, int] | None:
    if plan.prediction is None:
        return None
    uses = [asdict(plan.prediction.stages[stage].memory) for stage in stages]
    return {name: sum(use[name] for use in uses) for name in asdict(MemoryUse())}
