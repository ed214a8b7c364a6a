"""Tracking: what a run was given, what it measured, what it wrote, and how it ended.

Importing loads nothing else. Stores need SQLAlchemy: `pip install 'ropewalk[tracking]'`.
"""

from ropewalk.lazy_names import LazyNames

_lazy = LazyNames(
    globals(),
    {"sqlalchemy": "tracking", "alembic": "tracking", "numpy": "tracking", "psycopg": "postgres"},
)

with _lazy:
    from ropewalk.tracking.beginning import track as track
    from ropewalk.tracking.checkpoints import CheckpointPolicy as CheckpointPolicy
    from ropewalk.tracking.checkpoints import Restored as Restored
    from ropewalk.tracking.checkpoints import read_checkpoint as read_checkpoint
    from ropewalk.tracking.current import current_run as current_run
    from ropewalk.tracking.log_policies import LogPolicy as LogPolicy
    from ropewalk.tracking.run import Run as Run
    from ropewalk.tracking.run import RunInterrupted as RunInterrupted
    from ropewalk.tracking.run import RunPaused as RunPaused
    from ropewalk.tracking.run import RunStopped as RunStopped
    from ropewalk.tracking.run import RunTerminated as RunTerminated
    from ropewalk.tracking.run_config import RunConfig as RunConfig
    from ropewalk.tracking.sinks.csv_files import CsvFile as CsvFile
    from ropewalk.tracking.sinks.jsonl import JsonLines as JsonLines
    from ropewalk.tracking.sinks.mlflow import MLflowRun as MLflowRun
    from ropewalk.tracking.sinks.sink import RunSink as RunSink
    from ropewalk.tracking.sinks.tensorboard import TensorBoardFiles as TensorBoardFiles
    from ropewalk.tracking.sinks.wandb import WandbRun as WandbRun
    from ropewalk.tracking.store.blocks import Points as Points
    from ropewalk.tracking.store.opening import open_store as open_store
    from ropewalk.tracking.store.rows import ArtifactRow as ArtifactRow
    from ropewalk.tracking.store.rows import AttemptRow as AttemptRow
    from ropewalk.tracking.store.rows import CheckpointRow as CheckpointRow
    from ropewalk.tracking.store.rows import EventRow as EventRow
    from ropewalk.tracking.store.rows import NoteRow as NoteRow
    from ropewalk.tracking.store.rows import RequestRow as RequestRow
    from ropewalk.tracking.store.rows import RunRow as RunRow
    from ropewalk.tracking.store.rows import SeriesRow as SeriesRow
    from ropewalk.tracking.store.store import RunStore as RunStore
