"""The commands on real programs: `ps`, `logs`, `stack` and `stop` while nodes hang and talk, and Ctrl-C on `run`."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cli.command import environment, ropewalk
from tests.patience import wait_until
from tests.rest_of import rest_of

WALK = Path(__file__).with_name("walk.py")
RUN = [sys.executable, "-m", "ropewalk", "run", str(WALK)]


class Walk:
    """The program in a launcher of its own, as a terminal sees it."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path) -> None:
        self.process = process
        self.folder = folder

    def nodes(self) -> dict[str, dict[str, Any]]:
        programs = json.loads(self.command("ps", "--json").stdout)["running"]
        (program,) = [each for each in programs if each["pid"] == self.process.pid]  # others may run on this machine
        assert program["name"] == "walk"
        return {process["name"]: process for process in program["processes"]}

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return ropewalk(*arguments, ROPEWALK_RUN_FOLDER=str(self.folder))

    def end(self) -> tuple[int, str]:
        """Wait for its end; the exit code, and all that it printed after `ready`."""
        output, _ = rest_of(self.process)
        return self.process.returncode, output.decode()


@contextlib.contextmanager
def walk(folder: Path, *words: str, command: list[str] = RUN, **changes: str) -> Generator[Walk]:
    run_folder = Path(tempfile.mkdtemp(prefix="w"))
    process = subprocess.Popen(
        [*command, *words],
        cwd=folder,
        env=environment(ROPEWALK_RUN_FOLDER=str(run_folder), **changes),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        bufsize=0,
        start_new_session=True,
        # These tests may themselves run where SIGINT is ignored (`pytest &` in a script), which children inherit.
    )
    try:
        assert process.stdout
        seen = b""
        while b"\nready\n" not in b"\n" + seen:
            block = process.stdout.read(65536)
            assert block, seen.decode()
            seen += block
        yield Walk(process, run_folder)
    finally:
        process.send_signal(signal.SIGCONT)
        if process.poll() is None:
            process.kill()
        process.communicate()
        if "threads" in words:  # a launcher that is killed has nobody to clean up behind it
            shutil.rmtree(run_folder)
        due = time.monotonic() + 120
        while run_folder.exists():  # its processes clean up, whatever became of the launcher
            assert time.monotonic() < due, list(run_folder.iterdir())
            with contextlib.suppress(OSError):
                run_folder.rmdir()
            time.sleep(0.01)


# --- ps, logs, stack, stop --------------------------------------------------------------------------------------------


def test_ps_shows_where_nodes_run_and_what_they_are_in(tmp_path: Path) -> None:
    with walk(tmp_path) as program:
        # A busy host may tell of a call that is over a moment after the next one has begun.
        nodes = wait_until(program.nodes, "a call to be over", wanted=lambda nodes: nodes["store.0"]["done"])
        words = program.command("ps").stdout
    assert set(nodes) == {"store.0", "sleeper.0", "caller.0"}
    assert {node["state"] for node in nodes.values()} == {"running"}
    assert len({node["pid"] for node in nodes.values()} - {0, program.process.pid}) == 3
    assert nodes["store.0"]["kind"] == "service" and nodes["store.0"]["done"] == 1
    assert nodes["store.0"]["doing"] == "store.look_up_slowly" and nodes["store.0"]["doing_s"] > 0
    assert f"walk running, pid {program.process.pid}, processes" in words and "in store.look_up_slowly for " in words


def test_ps_shows_the_memory_of_each_process(tmp_path: Path) -> None:
    with walk(tmp_path) as program:

        def memory() -> list[int]:
            return [node["memory_bytes"] for node in program.nodes().values()]

        wait_until(memory, "each to be told", wanted=lambda sizes: min(sizes) > 1 << 20)


@pytest.mark.parametrize("mode", ["processes", pytest.param("threads", marks=pytest.mark.soak)])
def test_stack_shows_the_users_function_of_each_node_that_hangs(tmp_path: Path, mode: str) -> None:
    busy = ["busy"] if mode == "processes" else []  # as a thread it would stop all others, too
    with walk(tmp_path, "--mode", mode, "--", *busy) as program:
        stacks = json.loads(program.command("stack", "walk", "--json").stdout)
        one = program.command("stack", "walk", "sleeper.0").stdout
        wrong = program.command("stack", "walk", "nobody")
    assert set(stacks) == {"store.0", "sleeper.0", "caller.0", *(f"{name}cher.0" for name in ["crun"] if busy)}
    assert (
        f'File "{WALK}"' in stacks["sleeper.0"] and "in sleep_in_my_code\n    time.sleep(1000)" in stacks["sleeper.0"]
    )
    assert "in caller\n    store.look_up_slowly(1000)" in stacks["caller.0"]
    assert "in look_up_slowly\n    time.sleep(seconds)" in stacks["store.0"]
    if busy:
        assert "in crunch_in_c" in stacks["cruncher.0"]
    # Nothing of ours stands above the user's code, and our own threads are left out.
    assert all(text.count("  File") < 8 and "threading.py" not in text for text in stacks.values())
    assert one.startswith(f'[sleeper.0]\n  File "{WALK}", line ') and one.count("[") == 1
    assert wrong.returncode == 1 and "has no node 'nobody'; it has store, sleeper, caller" in wrong.stderr


def test_stack_finds_its_lines_between_those_of_a_node_that_talks(tmp_path: Path) -> None:
    with walk(tmp_path, "--", "loud") as program:
        stacks = json.loads(program.command("stack", "walk", "talker", "--json").stdout)
    assert set(stacks) == {"talker.0", "talker.1"}
    assert all("in talker\n" in text and "xxx" not in text for text in stacks.values())


def test_logs_shows_and_follows_what_each_node_prints(tmp_path: Path) -> None:
    with walk(tmp_path, "--", "loud") as program:
        assert program.command("logs", "walk", "sleeper").stdout == "[sleeper.0] the sleeper begins\n"
        following = subprocess.Popen(
            [sys.executable, "-m", "ropewalk", "logs", "walk", "talker.1", "--follow", "-n", "1"],
            env=environment(ROPEWALK_RUN_FOLDER=str(program.folder)),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert following.stdout and program.process.stdout
        # Who prints waits for somebody to read it, and so do those whose lines it prints.
        reader = threading.Thread(target=program.process.stdout.read)
        reader.start()
        lines = [following.stdout.readline() for _ in range(200)]
        assert program.command("stop", "walk", "--grace", "0").returncode == 0
        reader.join()
        program.end()
        _, errors = following.communicate(timeout=120)
    assert all(re.fullmatch(r"\[talker\.1\] (\d+ x{500}|half a line, and its other half)\n", line) for line in lines)
    numbers = [int(found[1]) for line in lines if (found := re.search(r" (\d+) x", line))]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert errors == "ropewalk: the program has ended\n"


def test_logs_of_threads_says_where_their_output_is(tmp_path: Path) -> None:
    with walk(tmp_path, "--mode", "threads") as program:
        done = program.command("logs", "walk")
    assert done.returncode == 2 and "in mode threads, its nodes print into the launcher's own terminal" in done.stderr


@pytest.mark.parametrize("mode", ["processes", pytest.param("threads", marks=pytest.mark.soak)])
def test_stop_ends_all_nodes_and_the_script_goes_on(tmp_path: Path, mode: str) -> None:
    with walk(tmp_path, "--mode", mode) as program:
        stopped = program.command("stop", "walk", "--grace", "0.3")
        code, output = program.end()
    assert stopped.returncode == 0 and stopped.stdout.startswith("walk stopped: 3 ended")
    assert code == 0 and "wait returned True stopped\n" in output


# --- output -----------------------------------------------------------------------------------------------------------


def test_lines_of_nodes_that_talk_at_once_are_never_mixed_and_are_kept_in_files(tmp_path: Path) -> None:
    logs = tmp_path / "kept"
    early = b""
    with walk(tmp_path, "--", "loud", ROPEWALK_LOGS=str(logs)) as program:
        assert program.process.stdout
        while min(early.count(b"[talker 0@"), early.count(b"[talker 1@")) < 30:
            block = program.process.stdout.read(65536)
            assert block, early.decode()
            early += block
        program.command("stop", "walk", "--grace", "1")
        _, output = program.end()
    said = [line for line in (early.decode() + output).splitlines() if "talker" in line]
    # The first line may have begun in front of what was read as "ready".
    prefixed = re.compile(r"\[talker [01]@[^ ]+\] (\d+ x{500}|half a line, (and its other half)?)")
    assert [line[:80] for line in said[1:] if not prefixed.fullmatch(line)] == []
    assert {file.name for file in logs.iterdir()} >= {"talker.0.log", "talker.1.log", "sleeper.0.log"}
    assert (logs / "sleeper.0.log").read_text() == "the sleeper begins\n"
    kept = (logs / "talker.0.log").read_text().splitlines()
    assert len(kept) > 20 and kept[0] == "1 " + "x" * 500


def test_names_of_nodes_are_coloured_on_a_terminal(tmp_path: Path) -> None:
    master, slave = pty.openpty()
    folder = Path(tempfile.mkdtemp(prefix="w"))
    surroundings = environment(TERM="xterm", ROPEWALK_RUN_FOLDER=str(folder))
    del surroundings["NO_COLOR"]
    process = subprocess.Popen(RUN, cwd=tmp_path, env=surroundings, stdout=slave, stderr=slave)
    os.close(slave)
    seen = b""
    while b"the sleeper begins" not in seen or b"ready" not in seen:
        seen += os.read(master, 65536)
    ropewalk("stop", "walk", "--grace", "0", ROPEWALK_RUN_FOLDER=str(folder))
    with contextlib.suppress(OSError):  # how a terminal says that nobody is there any more
        while os.read(master, 65536):
            pass
    process.wait(120)
    os.close(master)
    folder.rmdir()
    assert re.search(rb"\x1b\[[0-9;]+m\[sleeper 0@[^ ]+\]\x1b\[0?m the sleeper begins", seen), seen


# --- signals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["processes", "threads"])
def test_ctrl_c_asks_the_script_and_leaves_nothing(tmp_path: Path, mode: str) -> None:
    with walk(tmp_path, "--mode", mode) as program:
        os.killpg(program.process.pid, signal.SIGINT)  # as a terminal does: to all of its processes
        code, output = program.end()
    assert code == 130
    assert "Ctrl-C received, stopping; press it again to kill everything at once" in output
    assert "interrupted\n" in output and output.count("KeyboardInterrupt") == 1


@pytest.mark.parametrize("mode", ["processes", pytest.param("threads", marks=pytest.mark.soak)])
def test_a_second_ctrl_c_insists(tmp_path: Path, mode: str) -> None:
    with walk(tmp_path, "--mode", mode) as program:
        os.killpg(program.process.pid, signal.SIGINT)
        assert program.process.stdout
        seen = b""
        while b"interrupted" not in seen:
            seen += program.process.stdout.read(65536)
        os.killpg(program.process.pid, signal.SIGINT)
        code, output = program.end()
    assert code == 130 and "killing everything" in output


def test_a_launcher_that_is_killed_takes_its_nodes_along(tmp_path: Path) -> None:
    with walk(tmp_path, command=[sys.executable, str(WALK)]) as program:
        pids = [node["pid"] for node in program.nodes().values()]
        program.process.kill()
        program.process.wait()
        due = time.monotonic() + 120
        while any(psutil.pid_exists(pid) for pid in pids):
            assert time.monotonic() < due
            time.sleep(0.02)
        listed = json.loads(program.command("ps", "--json").stdout)["running"]  # also those of others on this machine
        assert program.process.pid not in [each["pid"] for each in listed]


def test_a_launcher_that_is_stopped_hangs_no_command_and_goes_on_afterwards(tmp_path: Path) -> None:
    with walk(tmp_path) as program:
        program.process.send_signal(signal.SIGSTOP)
        frozen = program.command("stack", "walk")
        program.process.send_signal(signal.SIGCONT)
        assert set(program.nodes()) == {"store.0", "sleeper.0", "caller.0"}
    assert frozen.returncode == 1 and f"kill -CONT {program.process.pid} lets it go on" in frozen.stderr
