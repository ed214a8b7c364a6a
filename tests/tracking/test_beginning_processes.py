"""What ends a process, and a disk that is full, with real processes."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ropewalk.tracking import RunStore
from ropewalk.tracking.checkpoints import CheckpointFolder
from ropewalk.tracking.journal import recover
from tests.patience import PATIENCE_S

SCRIPTS = Path(__file__).with_name("scripts.py")


def start(name: str, store: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "ROPEWALK_STORE": str(store)}
    return subprocess.Popen(
        [sys.executable, "-P", str(SCRIPTS), name],
        env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
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
    recover(store)  # as everything that opens the store does
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


def test_every_request_is_answered_however_close_to_the_end_it_comes(store_path: Path, store: RunStore) -> None:
    """Runs look for requests every half second; what came after the last look was never answered.

    A request to stop that was found while a run was ending killed the script, whose handler was gone already.
    """
    numbers: list[int] = []
    with start("run_briefly", store_path) as process:
        assert process.stdout is not None and process.stdin is not None
        for _ in range(10):
            run = process.stdout.readline().strip()
            actions = itertools.cycle(("pause", "stop"))
            numbers.append(store.request(run, next(actions)))
            process.stdin.write("\n")
            process.stdin.flush()
            with ThreadPoolExecutor(1) as threads:
                end = threads.submit(process.stdout.readline)
                while not end.done():
                    numbers.append(store.request(run, next(actions)))
                    time.sleep(0.1)
            assert end.result().strip() == "ended"
            numbers.append(store.request(run, next(actions)))
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors
    answers = [store.requested(number) for number in numbers]
    assert all(one and one.answered and one.answer for one in answers)
    too_late = [one for one in answers if one and one.answer.startswith("it had ended already")]
    assert 10 <= len(too_late) <= len(answers) - 10, "of each run the first came before the end, and the last after it"


@pytest.mark.soak  # seven interpreters, one after the other
def test_a_run_is_paused_continued_killed_and_forked_from_another_terminal(store_path: Path, store: RunStore) -> None:
    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "ROPEWALK_STORE": str(store_path)}
        whole = [sys.executable, "-P", "-m", "ropewalk", "runs", *arguments]
        return subprocess.run(whole, env=environment, capture_output=True, text=True, timeout=100)

    def wait_for_steps(num: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while len(store.points(run, "count")) < num:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def wait_for_run() -> str:
        deadline = time.monotonic() + PATIENCE_S
        while not (found := store.runs()):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return found[0].id

    with start("count_for_ever", store_path) as first:
        run = wait_for_run()
        wait_for_steps(5)
        done = command("pause", "counting")
        assert (done.returncode, done.stdout) == (0, f"counting ({run}) is paused\n"), done.stderr
        first.communicate(timeout=PATIENCE_S)
        assert first.returncode == 75
    (paused_at,) = [one.step for one in store.checkpoints(run)]

    environment = {**os.environ, "ROPEWALK_STORE": str(store_path)}
    whole = [sys.executable, "-P", "-m", "ropewalk", "runs", "continue", run]
    with subprocess.Popen(
        whole, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as second:
        wait_for_steps(int(paused_at) + 5)
        done = command("kill", run)
        assert (done.returncode, done.stdout) == (0, f"counting ({run}) is stopped\n"), done.stderr
        second.communicate(timeout=PATIENCE_S)
        assert second.returncode == -signal.SIGKILL
    steps, counts = (getattr(store.points(run, "count"), name).tolist() for name in ("steps", "values"))
    assert steps == counts == list(range(1, len(steps) + 1)), "it went on with the step after the checkpoint"
    assert [one.outcome for one in store.attempts(run)] == ["paused", "lost"]

    # On the disk: the process may have been killed before the store knew of the last one.
    end = int(CheckpointFolder(Path(store.run(run).folder) / "checkpoints").saved()[-1].step) + 3
    done = command("fork", run, "--set", f"total={end}")
    assert done.returncode == 0, done.stderr
    (fork,) = store.children(run)
    assert fork.state == "done" and store.points(fork.id, "count").steps.tolist() == [end - 2, end - 1, end]


def test_an_exception_that_ends_the_interpreter_is_the_cause(store_path: Path, store: RunStore) -> None:
    with start("leave_by_sys_exit", store_path) as process:
        process.communicate(timeout=PATIENCE_S)
    row = store.run("left")
    assert row.state == "failed" and row.why.endswith("ValueError: uncaught\n")
