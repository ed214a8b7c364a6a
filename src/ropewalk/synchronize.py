"""`multiprocessing.synchronize`: our locks, semaphores, conditions, events and barriers."""

from ropewalk.sharing.synchronize import Barrier, BoundedSemaphore, Condition, Event, Lock, RLock, Semaphore

__all__ = ["Barrier", "BoundedSemaphore", "Condition", "Event", "Lock", "RLock", "Semaphore"]
