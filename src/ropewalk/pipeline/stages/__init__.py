"""Stages that run: what a worker of a pipeline needs to carry out actions on real tensors (needs torch)."""
