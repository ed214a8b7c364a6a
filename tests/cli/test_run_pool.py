"""`ropewalk run` with a real pool: its size, code of `__main__`, and what Ctrl-C leaves, which is nothing."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest

from tests.cli.command import ropewalk, start_ropewalk
from tests.cli.test_run import write
from tests.patience import PATIENCE_S


def test_pools_of_the_script_take_their_size_from_the_command(tmp_path: Path) -> None:
    write(tmp_path, "s.py", "import ropewalk\nwith ropewalk.Pool() as pool: print(len(pool.status().workers))")
    assert ropewalk("run", "s.py", "--workers", "3", folder=tmp_path).stdout == "3\n"
    assert ropewalk("run", "s.py", "--engine", "local", "--workers", "1", folder=tmp_path).stdout == "1\n"


def test_functions_and_classes_of_the_script_reach_the_workers_and_come_back(tmp_path: Path) -> None:
    source = """
        import ropewalk
        class Point:
            def __init__(self, x): self.x = x
        class Odd(Exception): pass
        def move(point):
            if point.x % 2: raise Odd(point.x)
            return Point(point.x + 1)
        with ropewalk.Pool(1) as pool:
            moved = pool.map(move, [Point(2), Point(4)])
            print([point.x for point in moved], isinstance(moved[0], Point))
            try:
                pool.apply(move, (Point(3),))
            except Odd as error:
                print("odd", error)
    """
    write(tmp_path, "s.py", source)
    done = ropewalk("run", "s.py", folder=tmp_path)
    assert (done.stdout, done.stderr) == ("[3, 5] True\nodd 3\n", "")


WAITING = """
    import os, sys, time, ropewalk
    def work(seconds):
        time.sleep(seconds)
    with ropewalk.Pool(2) as pool:
        pool.map(work, [0, 0, 0, 0])
        result = pool.map_async(work, [60, 60])
        while not all(worker.state == "running" for worker in pool.status().workers):
            time.sleep(0.01)
        while True:
            try:
                print("ready", flush=True)
                result.get()
            except KeyboardInterrupt:
                if {gives_in}:
                    raise
"""


def tree_of(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


@pytest.mark.parametrize("signals", [1, 2])
def test_ctrl_c_leaves_nothing(tmp_path: Path, signals: int) -> None:
    write(tmp_path, "s.py", WAITING.format(gives_in=signals == 1))
    with start_ropewalk("run", "s.py", folder=tmp_path) as process:
        assert process.stdout
        processes: list[psutil.Process] = []
        for _ in range(signals):
            assert process.stdout.readline() == "ready\n"
            processes = processes or tree_of(process.pid)
            assert len(processes) >= 3  # an agent and two workers
            process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Ctrl-C received, stopping" in errors and ("killing everything" in errors) == (signals == 2)
    _, alive = psutil.wait_procs(processes, timeout=PATIENCE_S)
    assert alive == []


BROKEN = """
    import ropewalk
    def begin(): raise RuntimeError("no scenery")
    def work(number): return number
"""


@pytest.mark.parametrize(
    "use",
    [
        "with ropewalk.Pool(2, initializer=begin) as pool: pool.map(work, range(5))",
        "with ropewalk.Pool(2, initializer=begin) as pool: list(pool.imap(work, range(5)))",
        "with ropewalk.Pool(2, initializer=begin) as pool: pool.wait_until_ready()",
        "with ropewalk.Executor(2, initializer=begin) as executor: executor.submit(work, 1).result()",
        "with ropewalk.Executor(2, initializer=begin) as executor: list(executor.map(work, range(5)))",
    ],
)
def test_an_error_of_the_whole_run_is_shown_once_with_its_traceback(tmp_path: Path, use: str) -> None:
    """The pool logged it as well."""
    write(tmp_path, "s.py", BROKEN + f"    {use}\n")
    done = ropewalk("run", "s.py", folder=tmp_path)
    assert done.returncode == 1 and "in begin" in done.stderr and ", line 5, in <module>" in done.stderr, done.stderr
    assert done.stderr.count("the pool's initializer raised") == 1, done.stderr


@pytest.mark.parametrize(
    "end", ["pool.close(); pool.join()", "result.wait(); pool.terminate(); pool.join()", "result.wait()"]
)
def test_an_error_that_no_call_has_raised_is_logged(tmp_path: Path, end: str) -> None:
    lines = f"    pool = ropewalk.Pool(2, initializer=begin)\n    result = pool.apply_async(work, (1,))\n    {end}\n"
    write(tmp_path, "s.py", BROKEN + lines)
    done = ropewalk("run", "s.py", folder=tmp_path)
    assert done.stderr.count("pool-1 is broken: the pool's initializer raised") == 1, done.stderr
