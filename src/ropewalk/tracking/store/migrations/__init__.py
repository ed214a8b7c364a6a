"""Migrations of the tables of a store, which alembic carries out; `migrating.py` calls it."""
