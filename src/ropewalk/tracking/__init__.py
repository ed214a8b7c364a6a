"""Tracking: what a run was given, what it measured, what it wrote, and how it ended.

Importing loads nothing else. Stores need SQLAlchemy: `pip install 'ropewalk[tracking]'`.
"""

from ropewalk.lazy_names import LazyNames

_lazy = LazyNames(
    globals(),
    {"sqlalchemy": "tracking", "alembic": "tracking", "numpy": "tracking", "psycopg": "postgres"},
)

with _lazy:
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
