"""Announces what runs in this process, so that other terminals and the page of the same user find it.

What has a session is served by the session's loop, from its run folder. What has none gets a folder and a loop of its
own; in a process of a session it is not announced, as its launcher shows what its processes do.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Generator

from ropewalk import settings
from ropewalk.control.server import ControlServer
from ropewalk.control.target import ControlTarget
from ropewalk.processes import bootstrap
from ropewalk.processes.left_folders import claimed_folder
from ropewalk.processes.session import Session
from ropewalk.transport.loop import Loop

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def announced(target: ControlTarget, session: Session | None = None) -> Generator[None]:
    """Let other terminals and the page see a target while the block runs.

    Does nothing in a process of a session, unless it is given one. A machine on which nothing can be announced, such as
    one with a full disk, is not a reason not to run: the log says why.

    Args:
        target: what is shown.
        session: a session that is open for the whole block; by default a thread and a folder are made.
    """
    with contextlib.ExitStack() as stack:
        if session is not None or bootstrap.current is None:
            try:
                stack.enter_context(_served(target, session))
            except Exception as error:  # whatever prevents it: the target runs without being seen
                logger.warning("%s %s is not shown by ropewalk ps and the page: %s", target.kind, target.name, error)
        yield


@contextlib.contextmanager
def _served(target: ControlTarget, session: Session | None) -> Generator[None]:
    if session is not None:
        with _open(ControlServer(session.loop, session.folder, session.run_id, target)):
            yield
        return
    pid = os.getpid()
    with claimed_folder(settings.current().run_folder) as folder:
        loop = Loop()
        loop.start("ropewalk-control")
        try:
            with _open(ControlServer(loop, folder, os.urandom(8).hex(), target)):
                yield
        finally:
            if pid == os.getpid():
                loop.stop()
                assert loop.thread
                loop.thread.join()
            else:  # in a forked child: all of it stays with the parent
                loop.forget()


@contextlib.contextmanager
def _open(server: ControlServer) -> Generator[None]:
    server.open()
    try:
        yield
    finally:
        server.close()
