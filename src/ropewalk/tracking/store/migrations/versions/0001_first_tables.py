"""The first tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create them."""
    _make_runs()
    _make_metrics()
    _make_history()
    _make_files()


def _make_runs() -> None:
    op.create_table(
        "ropewalk_runs",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("created", sa.Float(precision=53), nullable=False),
        sa.Column("changed", sa.Float(precision=53), nullable=False),
        sa.Column("heard", sa.Float(precision=53), nullable=False),
        sa.Column("config", sa.Text(), nullable=False),
        sa.Column("parent", sa.String(), nullable=False),
        sa.Column("parent_step", sa.Float(precision=53), nullable=True),
        sa.Column("folder", sa.Text(), nullable=False),
        sa.Column("archived", sa.Boolean(), nullable=False),
        sa.Column("owner_host", sa.String(), nullable=False),
        sa.Column("owner_pid", sa.BigInteger(), nullable=False),
        sa.Column("owner_started", sa.Float(precision=53), nullable=False),
        sa.Column("owner_boot", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="ropewalk_runs_pk"),
    )
    op.create_index("ropewalk_runs_name_ix", "ropewalk_runs", ["name"])
    op.create_index("ropewalk_runs_parent_ix", "ropewalk_runs", ["parent"])
    op.create_index("ropewalk_runs_project_created_ix", "ropewalk_runs", ["project", "created"])
    op.create_table(
        "ropewalk_facts",
        sa.Column("run", sa.String(), nullable=False),
        sa.Column("facts", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["ropewalk_runs.id"], name="ropewalk_facts_run_fk", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run", name="ropewalk_facts_pk"),
    )
    op.create_table(
        "ropewalk_labels",
        sa.Column("run", sa.String(), nullable=False),
        sa.Column("label", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["ropewalk_runs.id"], name="ropewalk_labels_run_fk", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run", "label", name="ropewalk_labels_pk"),
    )


def _make_metrics() -> None:
    op.create_table(
        "ropewalk_series",
        sa.Column("id", _NUMBER, nullable=False),
        sa.Column("run", sa.String(), nullable=False),
        sa.Column("group", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.Column("num_nan", sa.BigInteger(), nullable=False),
        sa.Column("total", sa.Float(precision=53), nullable=True),
        sa.Column("least", sa.Float(precision=53), nullable=True),
        sa.Column("greatest", sa.Float(precision=53), nullable=True),
        sa.Column("last", sa.Float(precision=53), nullable=True),
        sa.Column("last_step", sa.Float(precision=53), nullable=True),
        sa.Column("last_time", sa.Float(precision=53), nullable=True),
        sa.ForeignKeyConstraint(["run"], ["ropewalk_runs.id"], name="ropewalk_series_run_fk", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="ropewalk_series_pk"),
        sa.UniqueConstraint("run", "group", "name", name="ropewalk_series_run_uq"),
    )
    op.create_table(
        "ropewalk_blocks",
        sa.Column("series", _NUMBER, nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["series"], ["ropewalk_series.id"], name="ropewalk_blocks_series_fk", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("series", "start", name="ropewalk_blocks_pk"),
    )


def _make_history() -> None:
    op.create_table(
        "ropewalk_attempts",
        sa.Column("run", sa.String(), nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("pid", sa.BigInteger(), nullable=False),
        sa.Column("began", sa.Float(precision=53), nullable=False),
        sa.Column("from_step", sa.Float(precision=53), nullable=True),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.Column("ended", sa.Float(precision=53), nullable=True),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("failure_class", sa.Text(), nullable=False),
        sa.Column("at_step", sa.Float(precision=53), nullable=True),
        sa.ForeignKeyConstraint(["run"], ["ropewalk_runs.id"], name="ropewalk_attempts_run_fk", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run", "number", name="ropewalk_attempts_pk"),
    )
    op.create_table(
        "ropewalk_events",
        sa.Column("id", _NUMBER, nullable=False),
        sa.Column("run", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("time", sa.Float(precision=53), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["ropewalk_runs.id"], name="ropewalk_events_run_fk", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="ropewalk_events_pk"),
    )
    op.create_index("ropewalk_events_run_ix", "ropewalk_events", ["run"])
    op.create_table(
        "ropewalk_notes",
        sa.Column("id", _NUMBER, nullable=False),
        sa.Column("run", sa.String(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("time", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["ropewalk_runs.id"], name="ropewalk_notes_run_fk", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="ropewalk_notes_pk"),
    )
    op.create_index("ropewalk_notes_run_ix", "ropewalk_notes", ["run"])
    op.create_table(
        "ropewalk_requests",
        sa.Column("number", _NUMBER, nullable=False),
        sa.Column("run", sa.String(), nullable=False),
        sa.Column("action", sa.String(), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.Column("asked", sa.Float(precision=53), nullable=False),
        sa.Column("answered", sa.Float(precision=53), nullable=True),
        sa.Column("ok", sa.Boolean(), nullable=True),
        sa.Column("answer", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["ropewalk_runs.id"], name="ropewalk_requests_run_fk", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("number", name="ropewalk_requests_pk"),
        sqlite_autoincrement=True,
    )
    op.create_index("ropewalk_requests_run_answered_ix", "ropewalk_requests", ["run", "answered"])


def _make_files() -> None:
    op.create_table(
        "ropewalk_artifacts",
        sa.Column("id", _NUMBER, nullable=False),
        sa.Column("run", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(), nullable=False),
        sa.Column("time", sa.Float(precision=53), nullable=False),
        sa.Column("step", sa.Float(precision=53), nullable=True),
        sa.Column("media_type", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["ropewalk_runs.id"], name="ropewalk_artifacts_run_fk", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="ropewalk_artifacts_pk"),
    )
    op.create_index("ropewalk_artifacts_run_ix", "ropewalk_artifacts", ["run"])
    op.create_table(
        "ropewalk_checkpoints",
        sa.Column("run", sa.String(), nullable=False),
        sa.Column("step", sa.Float(precision=53), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("time", sa.Float(precision=53), nullable=False),
        sa.Column("score", sa.Float(precision=53), nullable=True),
        sa.ForeignKeyConstraint(["run"], ["ropewalk_runs.id"], name="ropewalk_checkpoints_run_fk", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run", "step", name="ropewalk_checkpoints_pk"),
    )
