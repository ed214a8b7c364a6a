"""Tracking: what a run was given, what it measured, what it wrote, and how it ended.

Importing loads nothing else. Stores need SQLAlchemy: `pip install 'ropewalk[tracking]'`.
"""
