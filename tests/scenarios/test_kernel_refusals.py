"""Where the kernel refuses a system call: what is needed is named, and without the rest everything still works."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from ropewalk.transport import kernel
from tests import refused_calls

NEEDED = [feature.name for feature in kernel.FEATURES if not feature.without and feature.name in refused_calls.NAMES]
OTHERS = [feature.name for feature in kernel.FEATURES if feature.without]
GUARD_S = 250.0


@pytest.fixture(autouse=True, scope="module")
def _filters_of_system_calls() -> None:
    if "Seccomp_filters:" not in Path("/proc/self/status").read_text():
        pytest.skip("this kernel was built without CONFIG_SECCOMP_FILTER")


def start(folder: Path, source: str, refused: Sequence[str], error: int) -> subprocess.Popen[str]:
    script = folder / "script.py"
    script.write_text(textwrap.dedent(source))
    return subprocess.Popen(
        [sys.executable, "-W", "ignore::DeprecationWarning", str(script)],  # Python 3.12 warns of forks beside threads
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=refused_calls.refusing(refused, error),
    )


def output(folder: Path, source: str, refused: Sequence[str], error: int) -> str:
    with start(folder, source, refused, error) as process:
        try:
            return process.communicate(timeout=GUARD_S)[0]
        finally:
            process.kill()


def test_all_that_can_be_refused_one_by_one_is_tried_here() -> None:
    assert {*NEEDED, *OTHERS} == set(refused_calls.NAMES)


@pytest.mark.parametrize("name", NEEDED)
def test_what_nothing_runs_without_is_named_at_once(tmp_path: Path, name: str) -> None:
    # Without a subreaper, workers waited for 60 s to become children of their agent, and ended in silence.
    source = """
        import ropewalk as rw
        if __name__ == "__main__":
            with rw.Pool(1) as pool:
                print(pool.map(abs, [-1]))
    """
    said = output(tmp_path, source, [name], errno.EPERM)
    assert f"{name} is refused (Operation not permitted)" in said and "StartFailed" in said, said
    assert "seccomp profile" in said and "ropewalk doctor" in said


def test_doctor_names_all_that_is_refused_and_what_is_lost_by_it(tmp_path: Path) -> None:
    source = """
        from ropewalk.cli.findings import features
        for row in features():
            print(row.state.value, row.what, "|", row.value, "|", row.advice)
    """
    lines = output(tmp_path, source, refused_calls.NAMES, errno.ENOSYS).splitlines()
    for feature in kernel.FEATURES:
        (line,) = (line for line in lines if line.split()[1] == feature.name)
        if feature.name not in refused_calls.NAMES:
            assert line == f"ok {feature.name} | available | "
            continue
        assert "not implemented" in line and f"Linux {feature.since} and newer" in line
        assert line.startswith("warning" if feature.without else "failed")
        assert (feature.without or "nothing can run") in line


def test_without_the_others_pools_queues_and_locks_do_the_same_work(tmp_path: Path) -> None:
    source = """
        import time
        import ropewalk as rw

        def square(x):
            if x == 0:
                time.sleep(0.3)  # those behind it are not taken back
            return x * x

        def fill(queue, value):
            for number in range(500):
                queue.put(number)
                with value.get_lock():
                    value.value += 1

        if __name__ == "__main__":
            with rw.Pool(2) as pool:
                print(pool.map(square, range(100), chunksize=10) == [x * x for x in range(100)])
            queue, value = rw.Queue(), rw.Value("i", 0)
            processes = [rw.Process(target=fill, args=(queue, value)) for _ in range(2)]
            for process in processes:
                process.start()
            print(sorted(queue.get() for _ in range(1000)) == sorted([*range(500)] * 2))
            for process in processes:
                process.join()
            print(value.value, [process.exitcode for process in processes])
    """
    said = output(tmp_path, source, OTHERS, errno.ENOSYS)
    assert said.splitlines() == ["True", "True", "1000 [0, 0]"], said


@pytest.mark.parametrize("refused", [["pidfd_open"], []], ids=["asking", "told"])
def test_an_agent_ends_with_its_launcher_though_a_forked_child_keeps_their_link(
    tmp_path: Path, refused: list[str]
) -> None:
    source = """
        import os, time
        import ropewalk as rw
        if __name__ == "__main__":
            pool = rw.Pool(1)
            worker, agent = pool.apply(os.getpid), pool.apply(os.getppid)
            child = os.fork()
            if child:
                print(worker, agent, child, flush=True)
            time.sleep(600)
    """
    with start(tmp_path, source, refused, errno.EPERM) as launcher:
        assert launcher.stdout
        worker, agent, child = (psutil.Process(int(pid)) for pid in launcher.stdout.readline().split())
        try:
            launcher.send_signal(signal.SIGKILL)
            gone, _ = psutil.wait_procs([worker, agent], timeout=GUARD_S)
            assert set(gone) == {worker, agent}
            assert child.is_running()
        finally:
            child.kill()


def test_the_processes_of_another_namespace_at_proc_are_noticed() -> None:
    shell = ["unshare", "--pid", "--fork", sys.executable, "-c"]
    if subprocess.run([*shell, "pass"], capture_output=True).returncode:
        pytest.skip("needs the right to make a namespace of processes")
    source = "from ropewalk.transport import kernel; print(kernel.what_keeps_processes_from_running())"
    said = subprocess.run([*shell, source], capture_output=True, text=True, check=True).stdout
    assert "/proc is refused (" in said


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_elsewhere_than_on_linux_the_import_says_what_is_needed(platform: str) -> None:
    source = f"import sys; sys.platform = {platform!r}; import ropewalk"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert done.returncode == 1
    assert f"ImportError: Ropewalk runs on Linux, and this is {platform}" in done.stderr
