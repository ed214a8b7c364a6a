"""Training on real processes: a plan's stages as supervised processes, their links, snapshots and checkpoints.

    Trainer ──▶ Controller ──calls──▶ StageProcess ... StageProcess        one for each worker of the plan
                                        └──── links: activations, gradients, sums ────┘

Importing loads nothing else; training needs torch (`pip install 'ropewalk[torch]'`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk.lazy_names import lazy_names

if TYPE_CHECKING:
    from ropewalk.training.checkpoint import Checkpoint, load_module, read_manifest
    from ropewalk.training.measured import MeasuredTimeline
    from ropewalk.training.patience import Patience
    from ropewalk.training.report import TrainingReport
    from ropewalk.training.saving import Saving
    from ropewalk.training.step_handle import StepHandle
    from ropewalk.training.trainer import Trainer

_HOMES = {
    "Checkpoint": "checkpoint",
    "load_module": "checkpoint",
    "read_manifest": "checkpoint",
    "MeasuredTimeline": "measured",
    "Patience": "patience",
    "TrainingReport": "report",
    "Saving": "saving",
    "StepHandle": "step_handle",
    "Trainer": "trainer",
}

__all__ = [
    "Checkpoint",
    "MeasuredTimeline",
    "Patience",
    "Saving",
    "StepHandle",
    "Trainer",
    "TrainingReport",
    "load_module",
    "read_manifest",
]

#: What an install line brings, for each package that a part needs.
_EXTRAS = {"torch": "torch", "numpy": "torch", "safetensors": "torch"}

if not TYPE_CHECKING:  # a checker that saw it would take each misspelt name for one of any type
    __getattr__, __dir__ = lazy_names(__name__, _HOMES, _EXTRAS)
