"""Elastic data parallelism as a program: workers that may die, leave and come, and steps that count once."""
