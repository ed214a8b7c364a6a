"""Pools: multiprocessing's interface, over workers that may die at any moment."""
