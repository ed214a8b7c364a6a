"""What a process has still to say, after a test has read lines of it."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import AnyStr


def rest_of(process: subprocess.Popen[AnyStr], timeout_s: float = 120.0) -> tuple[AnyStr, AnyStr]:
    """Wait for its end; the rest of its output and of its errors.

    `Popen.communicate` reads from the pipe itself: lines that `readline` has read ahead of the one that it returned are
    lost by it.
    """
    assert process.stdout
    if process.stdin:
        process.stdin.close()
        process.stdin = None
    with ThreadPoolExecutor(1) as reader:
        errors = reader.submit(process.stderr.read) if process.stderr else None
        output = process.stdout.read()
    process.communicate(timeout=timeout_s)  # there is nothing left to read; it closes the pipes
    return output, errors.result() if errors else output[:0]
