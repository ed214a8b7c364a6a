"""The actor of a job on a node of Ray: it owns the job's keeper, and passes orders to it and news from it.

It is pickled by value, because the nodes may have another version of this package than the launcher.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from typing import BinaryIO, cast

_SECRET_VARIABLES = ("RAY_AUTH_TOKEN",)
"""Secrets of Ray that are removed from the job's environment."""


class JobActor:
    """Answers requests for news; ends itself, and so the job, when they stop."""

    def __init__(self, silence_s: float) -> None:
        self._news = bytearray()
        self._over = False
        self._changed = threading.Condition()
        self._heard = time.monotonic()
        self._silence_s = silence_s

    def start(self, python: str) -> tuple[str, str, int]:
        """Start the keeper; return the node's id and address, and the number of this process."""
        environment = {name: value for name, value in os.environ.items() if name not in _SECRET_VARIABLES}
        # Ray sets it to the CPUs of the whole job, which the job's processes share.
        environment.pop("OMP_NUM_THREADS", None)
        # `python` is the one that runs here, unless the engine's options name another.
        environment["PATH"] = os.path.dirname(sys.executable) + os.pathsep + environment.get("PATH", os.defpath)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the keeper
        # -P as in `interpreters.module_command`, which this version of the package may not have.
        keeper = [python or sys.executable, "-P", "-m", "ropewalk.engines.keeper", "inf"]
        # Started as an orphan: Ray kills the children of an actor at its end, and a killed keeper cannot end its jobs.
        shell = ["sh", "-c", 'exec 3<&0; "$@" <&3 3<&- &', "sh", *keeper]
        started = subprocess.Popen(
            shell,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            start_new_session=True,
        )
        started.wait()
        self._keeper = started
        for act in (self._read, self._watch):
            threading.Thread(target=act, daemon=True).start()
        ray = importlib.import_module("ray")
        return ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address(), os.getpid()

    def talk(self, orders: bytes, patience_s: float) -> tuple[bytes, str | None]:
        """Send orders to the keeper; return its news and, if it has ended, its last output."""
        self._heard = time.monotonic()
        with contextlib.suppress(BrokenPipeError):
            stdin = cast(BinaryIO, self._keeper.stdin)
            stdin.write(orders)
            stdin.flush()
        with self._changed:
            self._changed.wait_for(lambda: self._news or self._over, patience_s)
            news, self._news = bytes(self._news), bytearray()
            if not self._over:
                return news, None
        self._errors.seek(0)
        return news, self._errors.read().decode(errors="replace")[-2000:]

    def _read(self) -> None:
        for line in cast(BinaryIO, self._keeper.stdout):
            with self._changed:
                self._news += line
                self._changed.notify_all()
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def _watch(self) -> None:
        while time.monotonic() - self._heard < self._silence_s:
            time.sleep(0.5)
        os._exit(1)  # the driver is gone, or cut off: the keeper sees that we are gone
