"""Schedulers: which trial gets how much budget. One file per scheduler."""
