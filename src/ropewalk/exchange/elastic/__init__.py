"""Elastic data parallelism as a program: workers may die, leave and join, and each step counts exactly once."""
