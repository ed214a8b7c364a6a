"""What alembic runs to migrate a store: on the connection, and in the transaction, of `migrating.py`."""

from __future__ import annotations

from alembic import context

from ropewalk.tracking.store.schema import METADATA, VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    version_table=VERSION_TABLE,
    transactional_ddl=True,  # SQLite's too, once its transactions are begun by a statement, as `databases.py` does
)
context.run_migrations()
