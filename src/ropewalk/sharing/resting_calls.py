"""Calls to objects of this host at which nobody waits: a few words are read and written, and no state is restored.

    acquire ─ trylock ─▶ present = 0? owner = 0? ─▶ thread, depth, owner ─ unlock ─▶ True        about a microsecond
                              └ no ─▶ False: the states decide (`host_calls.py`)

What these do is what the states would do. Between `trylock` and `unlock` nothing is called, so no handler of a signal
runs in the middle of a change; the store of the first word is the change, so a process that is
killed has made it or not.
"""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING

from ropewalk.sharing.record_words import BOUND, FIRST, NUM_WAITING, PRESENT, QUEUE, SECOND, THIRD
from ropewalk.transport.process_mutex import OWNER_DIED, recover, trylock, unlock

if TYPE_CHECKING:
    from ropewalk.sharing.host_calls import HostCalls


def acquire_lock(calls: HostCalls, recursive: bool) -> bool:
    """Acquire a lock if it is free, or if it is recursive and this thread owns it; returns whether that was done."""
    words, mutex, thread = calls.words, calls.mutex, get_ident()
    done = False
    try:
        try:
            problem = trylock(mutex)
            if problem == OWNER_DIED:
                recover(mutex)
            elif not problem and not words[PRESENT]:
                if not words[FIRST]:
                    words[SECOND] = thread
                    words[THIRD] = 1
                    calls.record.is_touched = done = True
                    words[FIRST] = calls.seat
                elif recursive and words[FIRST] == calls.seat and words[SECOND] == thread:
                    words[THIRD] += 1
                    calls.record.is_touched = done = True
        finally:
            unlock(mutex)
    except BaseException:  # Ctrl-C: the caller would not know that it owns it
        if done and not release_lock(calls, recursive):
            calls.release()
        raise
    return done


def release_lock(calls: HostCalls, recursive: bool) -> bool:
    """Release a lock once, if that is allowed and nobody waits for it; returns whether that was done."""
    words, mutex, thread = calls.words, calls.mutex, get_ident()
    done = False
    try:
        problem = trylock(mutex)
        if problem == OWNER_DIED:
            recover(mutex)
        elif not problem and not words[PRESENT] and not words[QUEUE]:
            if not recursive:
                done = words[FIRST] != 0
            elif words[FIRST] == calls.seat and words[SECOND] == thread:
                done = True
            if done:
                calls.record.is_touched = True
                if words[THIRD] > 1:
                    words[THIRD] -= 1
                else:
                    words[FIRST] = 0
    finally:
        unlock(mutex)
    return done


def add(calls: HostCalls, number: int) -> bool:
    """Add to the count of a semaphore if it stays between 0 and the bound; returns whether that was done.

    While a call waits, the count is 0, and one that is added is that call's (`permit_ring.py`).
    """
    words, mutex = calls.words, calls.mutex
    if words[QUEUE] >> NUM_WAITING or (number < 0 and not words[FIRST]):
        return False
    done = False
    try:
        try:
            problem = trylock(mutex)
            if problem == OWNER_DIED:
                recover(mutex)
            elif not problem and not words[PRESENT]:
                count = words[FIRST] + number
                if count < 0 or words[QUEUE] >> NUM_WAITING:
                    pass
                elif words[BOUND] < 0 or count <= words[BOUND]:
                    calls.record.is_touched = done = True
                    words[FIRST] = count
        finally:
            unlock(mutex)
    except BaseException:  # Ctrl-C: the caller would not know of its permit
        if done and number < 0:
            calls.release()
        raise
    return done


def put(calls: HostCalls, is_set: bool) -> bool:
    """Set or clear an event for which nobody waits; returns whether that was done."""
    words, mutex = calls.words, calls.mutex
    done = False
    try:
        problem = trylock(mutex)
        if problem == OWNER_DIED:
            recover(mutex)
        elif not problem and not words[PRESENT]:
            calls.record.is_touched = done = True
            words[FIRST] = is_set
    finally:
        unlock(mutex)
    return done


def is_set(calls: HostCalls) -> bool | None:
    """Return whether an event is set; None if there are calls that wait."""
    words = calls.words
    return None if words[PRESENT] else words[FIRST] != 0


__all__ = ["acquire_lock", "add", "is_set", "put", "release_lock"]
