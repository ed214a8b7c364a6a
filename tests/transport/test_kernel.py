"""What the kernel says of processes."""

from __future__ import annotations

import os
import subprocess
import sys

from ropewalk.transport.kernel import is_running


def test_a_process_runs_until_it_has_ended_whether_or_not_its_parent_has_waited() -> None:
    assert is_running(os.getpid())
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert is_running(child.pid)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # and leave it a zombie
        os.kill(child.pid, 0)
        assert not is_running(child.pid)
    assert not is_running(child.pid)


def test_what_names_no_process_does_not_run() -> None:
    assert not any(map(is_running, (0, -1, -os.getpgrp(), 1 << 40)))
