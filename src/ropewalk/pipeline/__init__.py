"""Pipelines: profile a model, cut it into stages for a topology, schedule, verify, simulate and play them."""
