"""`multiprocessing.queues`: queues of Ropewalk."""

from queue import Empty, Full

from ropewalk.sharing.queues import JoinableQueue, Queue, SimpleQueue

__all__ = ["Empty", "Full", "JoinableQueue", "Queue", "SimpleQueue"]
