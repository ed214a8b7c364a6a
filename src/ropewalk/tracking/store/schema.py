"""The tables of a store, as the newest migration leaves them.

    runs ─┬─ facts         what it was given beside its configuration: code, packages, argv, host, seed
          ├─ labels
          ├─ series ─ blocks      each series of a metric, and its points, many in a row
          ├─ attempts, events, notes
          ├─ artifacts, checkpoints
          └─ requests      what was asked of the process that owns the run, and its answers

All names begin with `ropewalk_`, because a PostgreSQL database may hold tables of other programs, such as the `runs` of
MLflow. Configurations and other values without a fixed form are JSON in columns of text: they are read whole, and the
same statements work on both databases. A NaN is stored as NULL, as SQLite does by itself.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

VERSION_TABLE = "ropewalk_version"
"""The table in which alembic keeps the revision."""
REVISIONS = ("0001",)
"""All revisions of the tables, oldest first; the files in `migrations/versions` make them."""
METADATA = MetaData(
    naming_convention={
        "pk": "%(table_name)s_pk",
        "fk": "%(table_name)s_%(column_0_name)s_fk",
        "uq": "%(table_name)s_%(column_0_name)s_uq",
        "ix": "%(table_name)s_%(column_0_name)s_ix",
    }
)

_NUMBER = BigInteger().with_variant(Integer, "sqlite")
"""Only an INTEGER counts by itself in SQLite; it has 64 bits there."""


def _run() -> Column[str]:
    return Column("run", String, ForeignKey("ropewalk_runs.id", ondelete="CASCADE"), nullable=False)


RUNS = Table(
    "ropewalk_runs",
    METADATA,
    Column("id", String, primary_key=True),
    Column("project", String, nullable=False),
    Column("name", String, nullable=False),
    Column("kind", String, nullable=False),
    Column("state", String, nullable=False),
    Column("why", Text, nullable=False),
    Column("created", Float(53), nullable=False),
    Column("changed", Float(53), nullable=False),  # the time of its state
    Column("heard", Float(53), nullable=False),  # when its newest record was stored, within ten seconds
    Column("config", Text, nullable=False),  # JSON
    Column("parent", String, nullable=False),
    Column("parent_step", Float(53)),
    Column("folder", Text, nullable=False),
    Column("archived", Boolean, nullable=False),
    Column("owner_host", String, nullable=False),
    Column("owner_pid", BigInteger, nullable=False),
    Column("owner_started", Float(53), nullable=False),
    Column("owner_boot", String, nullable=False),
    Index("ropewalk_runs_project_created_ix", "project", "created"),
    Index("ropewalk_runs_parent_ix", "parent"),
    Index("ropewalk_runs_name_ix", "name"),
)
FACTS = Table(
    "ropewalk_facts",
    METADATA,
    Column("run", String, ForeignKey("ropewalk_runs.id", ondelete="CASCADE"), primary_key=True),
    Column("facts", Text, nullable=False),  # JSON
)
LABELS = Table(
    "ropewalk_labels",
    METADATA,
    Column("run", String, ForeignKey("ropewalk_runs.id", ondelete="CASCADE"), primary_key=True),
    Column("label", String, primary_key=True),
)
SERIES = Table(
    "ropewalk_series",
    METADATA,
    Column("id", _NUMBER, primary_key=True),
    _run(),
    Column("group", String, nullable=False),
    Column("name", String, nullable=False),
    Column("count", BigInteger, nullable=False),
    Column("num_nan", BigInteger, nullable=False),
    Column("total", Float(53)),  # the sum without NaN
    Column("least", Float(53)),
    Column("greatest", Float(53)),
    Column("last", Float(53)),
    Column("last_step", Float(53)),
    Column("last_time", Float(53)),
    UniqueConstraint("run", "group", "name"),
)
BLOCKS = Table(
    "ropewalk_blocks",
    METADATA,
    Column("series", _NUMBER, ForeignKey("ropewalk_series.id", ondelete="CASCADE"), primary_key=True),
    Column("start", BigInteger, primary_key=True),  # how many points of the series precede it
    Column("count", BigInteger, nullable=False),
    Column("data", LargeBinary, nullable=False),  # see `blocks.py`
)
ATTEMPTS = Table(
    "ropewalk_attempts",
    METADATA,
    Column("run", String, ForeignKey("ropewalk_runs.id", ondelete="CASCADE"), primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("host", String, nullable=False),
    Column("pid", BigInteger, nullable=False),
    Column("began", Float(53), nullable=False),
    Column("from_step", Float(53)),
    Column("outcome", String, nullable=False),  # empty while it goes on
    Column("ended", Float(53)),
    Column("cause", Text, nullable=False),
    Column("failure_class", Text, nullable=False),
    Column("at_step", Float(53)),
)
EVENTS = Table(
    "ropewalk_events",
    METADATA,
    Column("id", _NUMBER, primary_key=True),
    _run(),
    Column("kind", String, nullable=False),
    Column("text", Text, nullable=False),
    Column("time", Float(53), nullable=False),
    Column("data", Text, nullable=False),  # JSON
    Index("ropewalk_events_run_ix", "run"),
)
NOTES = Table(
    "ropewalk_notes",
    METADATA,
    Column("id", _NUMBER, primary_key=True),
    _run(),
    Column("text", Text, nullable=False),
    Column("time", Float(53), nullable=False),
    Index("ropewalk_notes_run_ix", "run"),
)
ARTIFACTS = Table(
    "ropewalk_artifacts",
    METADATA,
    Column("id", _NUMBER, primary_key=True),
    _run(),
    Column("name", String, nullable=False),
    Column("path", Text, nullable=False),
    Column("kind", String, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("sha256", String, nullable=False),
    Column("time", Float(53), nullable=False),
    Column("step", Float(53)),
    Column("media_type", String, nullable=False),
    Index("ropewalk_artifacts_run_ix", "run"),
)
CHECKPOINTS = Table(
    "ropewalk_checkpoints",
    METADATA,
    Column("run", String, ForeignKey("ropewalk_runs.id", ondelete="CASCADE"), primary_key=True),
    Column("step", Float(53), primary_key=True),
    Column("path", Text, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("time", Float(53), nullable=False),
    Column("score", Float(53)),
)
REQUESTS = Table(
    "ropewalk_requests",
    METADATA,
    Column("number", _NUMBER, primary_key=True),
    _run(),
    Column("action", String, nullable=False),
    Column("data", Text, nullable=False),  # JSON
    Column("asked", Float(53), nullable=False),
    Column("answered", Float(53)),
    Column("ok", Boolean),
    Column("answer", Text, nullable=False),
    Index("ropewalk_requests_run_answered_ix", "run", "answered"),
    sqlite_autoincrement=True,  # a number that was used by a deleted run is not used again
)
