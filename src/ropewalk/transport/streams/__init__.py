"""Streams: ordered bytes between two processes."""
