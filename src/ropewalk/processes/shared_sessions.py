"""The sessions that users of this process share by default: one per engine, made when one is needed."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Any

from ropewalk.errors import PoolClosed
from ropewalk.processes import open_sessions
from ropewalk.processes.session import Session
from ropewalk.settings import Settings
from ropewalk.settings import current as current_settings

_making = threading.RLock()


def _renew() -> None:
    """In a forked child: make a new lock, as another thread may have held it at the fork."""
    global _making
    _making = threading.RLock()


os.register_at_fork(after_in_child=_renew)


def default_session(engine: str | None = None, *, settings: Settings | None = None) -> Session:
    """Return the session that pools of this process share, one per engine, or one for exactly these settings."""
    exactly, settings = settings, settings or current_settings(engine=engine)
    with _making:  # two threads that make pools at once share it
        for session in _sessions():
            fits = session.settings == exactly if exactly else session.settings.engine == settings.engine
            if fits and not session.closed and not session.has_failed:
                return session
        session = Session(settings=settings)
        open_sessions.add(session)  # before it opens
        return session


def leased(session: Session | None = None, *, engine: str | None = None, settings: Settings | None = None) -> Session:
    """Lease a session: this one, or by default the one that `default_session` finds or makes.

    Raises:
        PoolClosed, StartFailed: as for `Session.lease`.
    """
    if session is not None:
        session.lease()
        return session
    while True:
        session = default_session(engine, settings=settings)
        with contextlib.suppress(PoolClosed):  # it ended just now because it was idle: the next one will be new
            session.lease()
            return session


def session_of(context: Any) -> Session | None:
    """Return the session of a context of ours, as programs for multiprocessing pass them.

    Returns None for a context of multiprocessing.
    """
    return getattr(context, "session", None)


def session_of_run(run_id: str) -> Session | None:
    """Return the session of this process that has that run, if it is open."""
    return next((session for session in _sessions() if session.run_id == run_id and not session.closed), None)


def _sessions() -> list[Session]:
    return [session for session in open_sessions.all_sessions() if isinstance(session, Session)]
