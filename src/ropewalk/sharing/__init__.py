"""Objects that processes share: queues, pipes, locks and memory, kept by the depot of a host."""
