"""What ends a process, and a disk that is full, with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from ropewalk.tracking import RunStore

SCRIPTS = Path(__file__).with_name("scripts.py")


def start(name: str, store: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "ROPEWALK_STORE": str(store)}
    return subprocess.Popen(
        [sys.executable, "-P", str(SCRIPTS), name],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_a_killed_script_is_lost_and_what_it_logged_before_is_kept(store_path: Path, store: RunStore) -> None:
    with start("log_for_ever", store_path) as process:
        assert process.stdout is not None
        run = process.stdout.readline().strip()
        for line in process.stdout:
            if int(line) >= 300:
                break
        process.send_signal(signal.SIGKILL)
        printed = 300 + len(process.stdout.readlines())
    values = [int(value) for value in store.points(run, "number").values]
    assert values == list(range(1, len(values) + 1)), "nothing is missing in between"
    assert 0 < len(values) <= printed + 1
    assert store.run(run).state == "lost"


def test_on_a_full_disk_training_goes_on_and_nothing_is_lost(store_path: Path, store: RunStore) -> None:
    with start("fill_the_disk", store_path) as process:
        output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    run, meanwhile, afterwards = output.splitlines()
    assert (meanwhile, afterwards) == ("waits False", "written True")
    assert list(store.points(run, "loss/19").values) == list(range(1, 301))
    assert store.run(run).state == "done"
    assert [one.step for one in store.checkpoints(run)] == [300]
    warnings = errors.splitlines()
    assert sum("cannot be written to" in line for line in warnings) == 1, errors
    assert sum("is not kept" in line or "was not kept" in line for line in warnings) == 1, errors


def test_an_exception_that_ends_the_interpreter_is_the_cause(store_path: Path, store: RunStore) -> None:
    with start("leave_by_sys_exit", store_path) as process:
        process.communicate(timeout=60)
    row = store.run("left")
    assert row.state == "failed" and row.why.endswith("ValueError: uncaught\n")
