"""`multiprocessing.synchronize`: locks, semaphores, conditions, events and barriers of Ropewalk."""

from ropewalk.sharing.synchronize import Barrier, BoundedSemaphore, Condition, Event, Lock, RLock, Semaphore

__all__ = ["Barrier", "BoundedSemaphore", "Condition", "Event", "Lock", "RLock", "Semaphore"]
