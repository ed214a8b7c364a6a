"""Replay: tables of items over rows that are stored once."""
