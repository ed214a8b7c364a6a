"""Thousands of workers with data of their own, simulated on one machine."""
