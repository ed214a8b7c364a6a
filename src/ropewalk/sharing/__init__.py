"""Objects that processes share: queues, pipes, locks and memory, which live in a depot near to them."""
