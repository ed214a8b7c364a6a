"""Tasks for the tests beside this file. Each new worker imports them, so nothing heavy may be imported here."""

from __future__ import annotations

import os
import time


def square(x: int) -> int:
    return x * x


def slow_square(x: int) -> int:
    time.sleep(0.02)
    return x * x


def pid_of_worker(_: int) -> int:
    return os.getpid()
