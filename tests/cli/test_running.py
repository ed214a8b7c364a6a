"""`ropewalk ps`, `logs`, `stop` and `stack`: another terminal sees a running program, and ends it.

Programs of others may run on this machine at the same time, so each test names its own.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Generator
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console

from ropewalk.cli.ps import LauncherReply, describe, render, to_json
from ropewalk.cli.stop import stop
from ropewalk.control.launchers import Launcher
from ropewalk.control.server import Announcement
from ropewalk.control.view import EventView
from ropewalk.escaping import escaped
from tests.cli.command import environment, ropewalk, start_ropewalk
from tests.control.pretend import Pretence, controlled, view_of
from tests.patience import PATIENCE_S


@contextlib.contextmanager
def launcher(name: str, *files: Path) -> Generator[subprocess.Popen[str]]:
    """A launcher in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.control.pretend", name, *map(str, files)],
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout and process.stdout.readline() == "ready\n"
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
        for folder in Path(os.environ["TMPDIR"]).glob("ropewalk-*"):
            shutil.rmtree(folder)  # of those that had no time to do it themselves


# --- ps ---------------------------------------------------------------------------------------------------------------


def test_ps_shows_programs_and_their_nodes() -> None:
    with controlled(Pretence("walk-ps")):
        done = ropewalk("ps")
    assert done.returncode == 0 and done.stderr == ""
    assert f"walk-ps running, pid {os.getpid()}, processes, up " in done.stdout
    assert "replay.0" in done.stdout and "7 waiting" in done.stdout and "in sample for 2.5 s" in done.stdout


def test_ps_shows_only_what_was_named() -> None:
    with controlled(Pretence("walk-one")), controlled(Pretence("walk-two")):
        done, nothing = ropewalk("ps", "walk-o"), ropewalk("ps", "walk-\x1bx", "--json")
    assert done.returncode == 0 and "walk-one running" in done.stdout and "walk-two" not in done.stdout
    assert nothing.returncode == 2 and nothing.stdout == ""
    assert "nothing that runs is called 'walk-\\x1bx'; there are:\n" in nothing.stderr
    assert f"  walk-two (pid {os.getpid()})\n" in nothing.stderr


def test_ps_speaks_json() -> None:
    with controlled(Pretence("walk-json")) as (_, found):
        done = ropewalk("ps", "--json")
    (program,) = [each for each in json.loads(done.stdout)["running"] if each["name"] == "walk-json"]
    assert program == view_of("walk-json").to_json()
    assert found.announcement.secret not in done.stdout


def test_ps_watches_until_it_is_interrupted(tmp_path: Path) -> None:
    target = Pretence("walk-watch")
    with controlled(target):
        watching = start_ropewalk("ps", "--watch", "--json", folder=tmp_path)
        assert watching.stdout
        seen: set[str] = set()
        while "stopping" not in seen:
            programs = json.loads(watching.stdout.readline())["running"]
            seen |= {program["state"] for program in programs if program["name"] == "walk-watch"}
            target.now = replace(target.now, state="stopping")
        watching.send_signal(signal.SIGINT)
        watching.communicate(timeout=120)
    assert seen == {"running", "stopping"} and watching.returncode == 130


def test_ps_draws_a_table_on_a_terminal() -> None:
    with controlled(Pretence("walk-table")):
        master, slave = pty.openpty()
        shown = ""
        try:
            surroundings = environment(TERM="xterm")
            subprocess.run([sys.executable, "-m", "ropewalk", "ps"], env=surroundings, stdout=slave, check=True)
        finally:
            os.close(slave)
        with open(master, "rb", buffering=0) as terminal, contextlib.suppress(OSError):  # EIO is its end
            while part := terminal.read(1 << 16):
                shown += part.decode()
    assert "walk-table running" in shown and "waiting" in shown and "4711" in shown


def test_a_table_takes_remote_text_as_text_and_not_as_markup() -> None:
    view = view_of("[red]x[/red]\x1b[2J")
    announcement = Announcement(name=view.name, pid=1, address="unix:/x", run_id="run", secret="secret")
    found = Launcher(Path("x"), announcement)
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(render([LauncherReply(found, view), LauncherReply(found, None, "silent \x1b[2J")]))
    shown = console.export_text()
    assert "[red]x[/red]\\x1b[2J" in shown and "silent \\x1b[2J" in shown
    assert "\x1b" not in shown and "\x1b" not in describe([LauncherReply(found, view)])
    assert describe([]) == "this user runs nothing on this machine: no program, pool or other"
    assert to_json([]) == {"running": [], "problems": [], "submitted": []}


def test_what_a_program_calls_itself_does_not_act_on_the_terminal_of_who_looks(tmp_path: Path) -> None:  # S19, S32
    hostile = "\x1b[2J\x1b]8;;http://evil.example\x07\x9b2J\x85[actor.0]\u2028\u202e\r"
    target = Pretence(f"walk{hostile}")
    process = replace(target.now.processes[0], name=f"replay{hostile}", kind=hostile, state=hostile, host=hostile)
    process = replace(process, doing=hostile, last_cause=hostile)
    event, facts = EventView(text=hostile), {hostile: hostile, "mode": hostile}
    target.now = replace(target.now, kind="pool", processes=(process,), events=(event,), facts=facts)
    target.files = {f"replay{hostile}": tmp_path / "log"}
    (tmp_path / "log").write_text(f"\x1b[31m{hostile}\n")
    with controlled(target):
        pid = str(os.getpid())
        commands = "ps", f"stack {pid}", f"stack {pid} x\x1b[2J", f"logs {pid}", f"logs {pid} x", f"stop {pid}"
        said = [ropewalk(*command.split(" ")) for command in commands]
    for done in said:
        text = f"{done.stdout}{done.stderr}"
        assert "\\x1b[2J" in text and escaped(text.replace("\n", "")) == text.replace("\n", "")


# --- a launcher that does not answer ----------------------------------------------------------------------------------


def test_a_stopped_launcher_hangs_no_command_and_the_message_says_what_to_do() -> None:
    with launcher("walk-frozen") as process, controlled(Pretence("walk-alive")):
        process.send_signal(signal.SIGSTOP)
        listed, stopped = ropewalk("ps", "--json"), ropewalk("stop", "walk-frozen", "--grace", "0")
    report = json.loads(listed.stdout)
    assert "walk-alive" in {program["name"] for program in report["running"]}
    (problem,) = [problem for problem in report["problems"] if problem["name"] == "walk-frozen"]
    words = (
        f"walk-frozen (pid {process.pid}, pretend.py) has not answered for 5 s; "
        f"its process is stopped (by Ctrl-Z or SIGSTOP); kill -CONT {process.pid} lets it go on"
    )
    assert problem == {"kind": "program", "name": "walk-frozen", "pid": process.pid, "problem": words}
    assert (listed.returncode, stopped.returncode) == (1, 1)
    assert stopped.stderr == f"ropewalk stop: {words}\n"


def test_what_a_killed_launcher_left_is_not_worth_a_word() -> None:
    with launcher("walk-dead") as process:
        assert "walk-dead" in ropewalk("ps").stdout
        process.kill()
        process.wait()
        done = ropewalk("ps")
        assert "walk-dead" not in done.stdout and done.stderr == ""


# --- stop -------------------------------------------------------------------------------------------------------------


def test_stop_waits_for_the_end_and_says_how_it_was() -> None:
    with launcher("walk-stop") as process:
        done = ropewalk("stop", "walk-sto", "--grace", "1.5")
        assert process.wait(120) == 0
    assert done.returncode == 0
    assert done.stderr == f"stopping walk-stop (pid {process.pid}, pretend.py)\n"
    assert done.stdout == "walk-stop stopped: 3 ended\n  replay.0 ended: killed by SIGKILL\n"


def test_a_grace_may_be_without_end() -> None:
    target = Pretence("walk-for-ever")
    with controlled(target):
        done = ropewalk("stop", str(os.getpid()), "--grace", "inf")
    assert target.stopped_with == [float("inf")] and done.returncode == 0, done.stderr


def test_stop_passes_on_the_grace_and_a_failed_program_is_a_failed_command() -> None:
    target = Pretence("walk-fails")
    with controlled(target):
        target.on_stop = lambda: setattr(target, "now", replace(target.now, state="failed"))
        done = ropewalk("stop", str(os.getpid()), "--grace", "2.5", "--json")
    assert target.stopped_with == [2.5]
    assert done.returncode == 1 and json.loads(done.stdout)["state"] == "failed"


def test_a_program_that_dies_while_it_stops_has_ended() -> None:
    with launcher("walk-dies") as process:
        done = ropewalk("stop", "walk-dies")
    assert done.returncode == 0
    assert done.stdout == f"walk-dies (pid {process.pid}, pretend.py) has ended, and did not say how\n"
    with launcher("walk-dies") as process:
        in_json = ropewalk("stop", "walk-dies", "--json")
    assert in_json.returncode == 0
    told = {"kind": "program", "name": "walk-dies", "id": "id-of-pretence", "pid": process.pid, "state": "ended"}
    assert json.loads(in_json.stdout) == told


def test_a_program_that_takes_longer_than_its_grace_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.import_module("ropewalk.cli.stop"), "_BEYOND_S", 0.1)
    target, released = Pretence("walk-slow"), threading.Event()
    target.on_stop = lambda: released.wait(PATIENCE_S)
    with controlled(target):
        code = stop.main(["walk-slow", "--grace", "0.1"], standalone_mode=False)
    released.set()
    assert code == 1
    said = capsys.readouterr().err
    assert "has not answered for 0.2 s" in said and "ropewalk stack walk-slow where they stand" in said


def test_a_name_that_nobody_has_is_answered_with_those_that_run() -> None:
    with controlled(Pretence("walk-here")):
        done = ropewalk("stop", "nobody-has-this-name")
    assert done.returncode == 2 and done.stdout == ""
    assert "no running program is called 'nobody-has-this-name'" in done.stderr
    assert f"  walk-here (pid {os.getpid()})" in done.stderr


@pytest.mark.parametrize("command", ["stop", "logs", "stack"])
def test_wrong_settings_are_said_before_anything_is_done(command: str) -> None:
    done = ropewalk(command, "x", ROPEWALK_ENGIN="y")
    assert done.returncode == 2 and "did you mean ROPEWALK_ENGINE?" in done.stderr


# --- stack ------------------------------------------------------------------------------------------------------------


def test_stack_prints_each_node_under_its_name() -> None:
    target = Pretence("walk-stack")
    with controlled(target):
        everything, one = ropewalk("stack", "walk-stack"), ropewalk("stack", "walk-stack", "replay")
        in_json = ropewalk("stack", "walk-stack", "replay.0", "--json")
        nobody, broken = ropewalk("stack", "walk-stack", "x"), ropewalk("stack", "walk-stack", "broken")
    assert everything.stdout.count("line 3 in run") == 3 and everything.returncode == 0
    assert one.stdout == '[replay.0]\nThread 1:\n  File "replay.py", line 3 in run\n'
    assert nobody.returncode == 2 and "no node 'x' runs in walk-stack" in nobody.stderr
    assert json.loads(in_json.stdout) == {"replay.0": 'Thread 1:\n  File "replay.py", line 3 in run'}
    assert broken.returncode == 1 and "ValueError: no such node: broken" in broken.stderr


# --- logs -------------------------------------------------------------------------------------------------------------


def write_logs(folder: Path) -> dict[str, Path]:
    files = {name: folder / f"{name}.log" for name in ("actor.0", "actor.1", "replay.0")}
    for name, file in files.items():
        file.write_text("".join(f"{name} says {number}\n" for number in range(100)))
    return files


def test_logs_shows_the_last_lines_of_each_replica(tmp_path: Path) -> None:
    target = Pretence("walk-logs")
    target.files = write_logs(tmp_path)
    target.files["replay.0"].write_text("first\n\x1b[31mred\x1b[2J\n")
    with controlled(target):
        actors = ropewalk("logs", "walk-logs", "actor", "--lines", "2")
        everything = ropewalk("logs", "walk-logs", "-n", "1")
        in_json = ropewalk("logs", "walk-logs", "replay", "-n", "1", "--json")
        wrong = ropewalk("logs", "walk-logs", "actor.7")
    assert actors.stdout.splitlines() == [
        "[actor.0] actor.0 says 98", "[actor.0] actor.0 says 99",
        "[actor.1] actor.1 says 98", "[actor.1] actor.1 says 99",
    ]  # fmt: skip
    assert everything.stdout.splitlines()[-1] == "[replay.0] red\\x1b[2J"
    assert json.loads(in_json.stdout) == {"node": "replay.0", "line": "\x1b[31mred\x1b[2J"}
    assert wrong.returncode == 2
    assert "there is no node 'actor.7'; there are: actor.0, actor.1, replay.0" in wrong.stderr


def test_logs_shows_stacks_without_our_own_frames(tmp_path: Path) -> None:
    # `ropewalk stack` asks processes for their stacks, which they print: twenty frames of ours stood in each log.
    target = Pretence("walk-stacks")
    target.files = write_logs(tmp_path)
    heading = "Current thread 0x00007f8b4bc63b80 (most recent call first):\n"
    work, ours = (
        '  File "/home/me/hang.py", line 3 in work\n',
        '  File "/venv/ropewalk/pool/worker.py", line 270 in run\n',
    )
    target.files["replay.0"].write_text(f"begin\n{heading}{work}{ours}end\n")
    with controlled(target):
        shown = ropewalk("logs", "walk-stacks", "replay")
    expected = f"begin\n{heading}{work}end\n"
    assert shown.stdout.splitlines() == [f"[replay.0] {line}" for line in expected.splitlines()]


def test_logs_follows_old_and_new_replicas_until_the_program_ends(tmp_path: Path) -> None:
    target = Pretence("walk-follow")
    files = write_logs(tmp_path)
    target.files = {"actor.0": files["actor.0"]}
    with controlled(target):
        following = start_ropewalk("logs", "walk-follow", "--follow", "--lines", "1", folder=tmp_path)
        assert following.stdout
        assert following.stdout.readline() == "[actor.0] actor.0 says 99\n"
        with files["actor.0"].open("a") as file:
            file.write("actor.0 says more\n")
        assert following.stdout.readline() == "[actor.0] actor.0 says more\n"
        target.files = files
        assert following.stdout.readline() == "[actor.1] actor.1 says 0\n"
        with files["actor.0"].open("a") as file:
            file.write("last words")
    output, errors = following.communicate(timeout=120)
    assert "[actor.0] last words\n" in output and following.returncode == 0
    assert errors == "ropewalk: the program has ended\n"


def test_logs_of_a_program_without_files_says_where_the_output_is() -> None:
    with controlled(Pretence("walk-threads")):
        done = ropewalk("logs", "walk-threads")
    assert done.returncode == 2 and "its nodes print into the launcher's own terminal" in done.stderr
