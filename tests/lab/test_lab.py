"""Machines of the lab: what is their own, how programs run in them, and that nothing of them is left."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.lab import Lab
from tests.lab.machine import counters, processes_in
from tests.lab.measuring import carry, connected
from tests.lab.plugin import require_namespaces

pytestmark = pytest.mark.lab


def test_a_machine_has_a_name_an_address_and_files_of_its_own(lab: Lab) -> None:
    one, two = lab.machines(2)
    one.run(["sh", "-c", "hostname > /tmp/name; touch /run/mine /dev/shm/mine"])

    assert one.path("/tmp/name").read_text() == "n1\n"
    assert not any(two.path(path).exists() for path in ("/tmp/name", "/run/mine", "/dev/shm/mine"))
    assert one.run(["ls", "/run"]).stdout == "hosts\nmine\n"
    assert one.ip != two.ip


def test_a_machine_sees_its_own_processes_only(lab: Lab) -> None:
    one, two = lab.machines(2)
    one.popen(["sleep", "100"])
    two.popen(["tail", "-f", "/dev/null"])
    seen = one.run(["ps", "-e", "-o", "args="]).stdout
    assert "sleep 100" in seen
    assert "tail" not in seen and "pytest" not in seen


def test_machines_find_each_other_by_name(lab: Lab) -> None:
    one, two = lab.machines(2)
    found = one.run([sys.executable, "-c", "import socket; print(socket.gethostbyname('n2'))"])
    assert found.stdout.strip() == two.ip


def test_python_the_environment_and_the_sources_are_there(lab: Lab) -> None:
    machine = lab.machine("n1")
    source = "import ropewalk, sys, tempfile; print(ropewalk.__file__, sys.prefix, tempfile.gettempdir())"
    import ropewalk

    words = machine.run([sys.executable, "-c", source]).stdout.split()
    assert words == [ropewalk.__file__, sys.prefix, "/tmp"]


def test_a_shared_folder_is_the_same_in_all_machines_that_asked_for_it(lab: Lab, tmp_path: Path) -> None:
    one, two = lab.machine("n1", shared=[tmp_path]), lab.machine("n2", shared=[tmp_path])
    stranger = lab.machine("n3")
    one.run(["sh", "-c", f"echo hello > {tmp_path}/word"])
    assert (tmp_path / "word").read_text() == "hello\n"
    assert two.run(["cat", tmp_path / "word"]).stdout == "hello\n"
    assert stranger.run(["cat", tmp_path / "word"], check=False).returncode != 0


def test_a_started_program_is_a_child_with_its_own_pid_signals_and_exit_code(lab: Lab) -> None:
    machine = lab.machine("n1")
    sleeper = machine.popen(["sleep", "100"])
    assert psutil.Process(sleeper.pid).ppid() == os.getpid()
    sleeper.terminate()
    assert sleeper.wait() == -signal.SIGTERM
    assert machine.run(["sh", "-c", "exit 7"], check=False).returncode == 7


def test_a_program_gets_environment_folder_and_input(lab: Lab) -> None:
    machine = lab.machine("n1")
    machine.run(["mkdir", "/tmp/here"])
    done = machine.run(["sh", "-c", "pwd; echo $WORD; cat"], cwd="/tmp/here", env={"WORD": "rope"}, input="walk")
    assert done.stdout == "/tmp/here\nrope\nwalk"


def test_a_failed_program_is_shown_with_its_output(lab: Lab) -> None:
    with pytest.raises(AssertionError, match=r"on n1, `sh -c .*` ended with 3:\nwhy"):
        lab.machine("n1").run(["sh", "-c", "echo why >&2; exit 3"])


def test_a_program_that_takes_too_long_is_killed(lab: Lab) -> None:
    machine = lab.machine("n1")
    with pytest.raises(subprocess.TimeoutExpired):
        machine.run(["sleep", "100"], timeout=0.1)
    assert "sleep" not in machine.run(["ps", "-e", "-o", "args="]).stdout


def test_orphans_in_a_machine_are_buried(lab: Lab) -> None:
    machine = lab.machine("n1")
    machine.run(["sh", "-c", "(sleep 0.05 &) ; exit 0"])
    deadline = time.monotonic() + 120
    while "sleep" in (seen := machine.run(["ps", "-e", "-o", "stat=,args="]).stdout) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert "sleep" not in seen


def test_the_process_of_the_tests_stays_where_it_was(lab: Lab) -> None:
    def whereabouts() -> list[object]:
        spaces = sorted(os.listdir("/proc/self/ns"))
        return [
            [os.readlink(f"/proc/self/ns/{space}") for space in spaces],
            Path("/proc/self/mountinfo").read_text(),
            os.uname().nodename,
            os.getcwd(),
            sorted(counters(None)),
        ]

    before = whereabouts()
    machine = lab.machine("n1")
    inside = machine.visit(lambda: (os.uname().nodename, [name for _, name in sorted(socket.if_nameindex())]))
    assert inside == ("n1", ["lo", "eth0"])
    assert whereabouts() == before


def test_labs_with_the_same_addresses_do_not_meet(lab: Lab) -> None:
    with Lab() as other:
        here, there = lab.machine("n1"), other.machine("n1")
        assert here.ip == there.ip
        server = there.listen()
        with server, pytest.raises(ConnectionRefusedError):
            here.connect(there.ip, server.getsockname()[1])


@pytest.mark.timing
def test_a_machine_starts_in_a_moment(lab: Lab) -> None:
    took_s: list[float] = []
    for number in range(5):
        began = time.perf_counter()
        lab.machine(f"n{number}")
        took_s.append(time.perf_counter() - began)
    assert min(took_s) < 0.4  # 0.03 s when nothing else runs, 0.16 s at a load of 8 on two cores


def test_plugging_kills_daemons_too_and_nobody_is_told(lab: Lab) -> None:
    one, two = lab.machines(2)
    port = 4321
    source = (
        "import socket; s = socket.create_server(('', 4321)); print(flush=True); c = s.accept()[0]; c.recv(1 << 20)"
    )
    server = two.python(f"{source}; input()", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    two.run(["sh", "-c", "setsid sleep 100 >/dev/null 2>&1 & setsid sleep 100 >/dev/null 2>&1 &"])
    assert server.stdout and server.stdout.readline()
    with one.connect(two.ip, port) as sock:
        sock.sendall(bytes(100_000))
        while two.bytes_received() < 100_000:
            time.sleep(0.001)
        lab.plug(two)
        assert server.poll() == -signal.SIGKILL
        assert processes_in(two.inodes) == []
        sock.settimeout(0.5)
        with pytest.raises(TimeoutError):  # a killed process would have closed its connection
            sock.recv(1)
    with pytest.raises(RuntimeError, match="n2 was plugged"):
        two.run(["true"])


def test_after_the_end_of_a_lab_nothing_of_it_is_left() -> None:
    require_namespaces()
    descriptors = set(os.listdir("/proc/self/fd"))
    before = set(psutil.Process().children())  # of labs that many tests share
    with Lab() as lab:
        one, two = lab.machines(2)
        shell = one.popen(
            ["sh", "-c", "setsid sh -c 'sleep 100 & echo; sleep 100' & sleep 100"], stdout=subprocess.PIPE
        )
        assert shell.stdout and shell.stdout.readline()
        lab.delay(two, 0.001)
        with connected(one, two) as (dialled, accepted):
            carry(dialled, accepted, 1 << 16)
        inside = [psutil.Process(int(words.split()[1])) for words in processes_in(one.inodes)]
        assert len(inside) >= 4
    assert not any(process.is_running() for process in inside)
    assert set(os.listdir("/proc/self/fd")) == descriptors
    assert set(psutil.Process().children()) <= before
