"""Training on real processes: a plan's stages as supervised processes, their links, snapshots and checkpoints."""
