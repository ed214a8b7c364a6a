"""Training on real processes: a plan's stages as supervised processes, their links, snapshots and checkpoints.

    Trainer ──▶ Controller ──calls──▶ StageProcess ... StageProcess        one for each worker of the plan
                                        └──── links: activations, gradients, sums ────┘

Importing loads nothing else; training needs torch (`pip install 'ropewalk[torch]'`).
"""

from __future__ import annotations

from ropewalk.lazy_names import LazyNames

_lazy = LazyNames(globals(), {"torch": "torch", "numpy": "torch", "safetensors": "torch"})
"""For each optional package, the extra of Ropewalk that installs it."""

with _lazy:
    from ropewalk.training.checkpoint import Checkpoint as Checkpoint
    from ropewalk.training.checkpoint import load_module as load_module
    from ropewalk.training.checkpoint import read_manifest as read_manifest
    from ropewalk.training.checkpoint_future import CheckpointFuture as CheckpointFuture
    from ropewalk.training.measured import MeasuredTimeline as MeasuredTimeline
    from ropewalk.training.report import TrainingReport as TrainingReport
    from ropewalk.training.step_handle import StepHandle as StepHandle
    from ropewalk.training.timeouts import TrainerTimeouts as TrainerTimeouts
    from ropewalk.training.trainer import Trainer as Trainer
    from ropewalk.training.trainer_options import ProcessOptions as ProcessOptions
    from ropewalk.training.trainer_options import Progress as Progress
    from ropewalk.training.trainer_options import Snapshots as Snapshots
    from ropewalk.training.trainer_options import Sources as Sources
