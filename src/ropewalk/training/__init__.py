"""Training on real processes: a plan's stages as supervised processes, their links, snapshots and checkpoints.

    Trainer ──▶ Controller ──calls──▶ StageProcess ... StageProcess        one for each worker of the plan
                                        └──── links: activations, gradients, sums ────┘

Importing loads nothing else; training needs torch (`pip install 'ropewalk[torch]'`).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

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


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    except ModuleNotFoundError as error:
        if error.name not in _EXTRAS:
            raise
        install = f"pip install 'ropewalk[{_EXTRAS[error.name]}]'"
        raise ModuleNotFoundError(f"ropewalk.training.{name} needs {error.name}: {install}", name=error.name) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
