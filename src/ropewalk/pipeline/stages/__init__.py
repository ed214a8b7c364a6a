"""Running stages: how a worker of a pipeline carries out actions on real tensors (needs torch)."""
