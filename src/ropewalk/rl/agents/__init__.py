"""Methods of reinforcement learning, one file each."""
