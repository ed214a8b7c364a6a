"""The store of runs: tables, migrations, writes and queries; SQLite in a file, or PostgreSQL."""
