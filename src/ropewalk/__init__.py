"""Ropewalk."""
