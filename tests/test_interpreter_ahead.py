"""The interpreter that starts before its session is imported: it is used, or it ends."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import textwrap

import psutil
import pytest

from tests.patience import PATIENCE_S

_BEGUN = """
import os, sys
from pathlib import Path
from ropewalk import interpreter_ahead
interpreter_ahead.begin({engine!r})
begun = interpreter_ahead._ahead

def called(session, function, *arguments):
    import ropewalk
    with ropewalk.Pool(1, session=session) as pool:
        return pool.apply(function, arguments)
"""


def run(script: str, *, engine: str = "local", exits: int = 0) -> str:
    """Run a script that has begun an interpreter; return what it prints."""
    code = _BEGUN.format(engine=engine) + textwrap.dedent(script)
    command = [sys.executable, "-P", "-W", "error", "-c", code]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (ended.returncode, ended.stderr) == (exits, ""), ended.stderr
    return ended.stdout


def ends(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(pid).wait(PATIENCE_S)
    return True


def test_the_first_session_uses_the_interpreter_and_its_run_has_the_id_of_the_interpreters() -> None:
    script = """
    import ropewalk
    with ropewalk.Session() as session:
        assert called(session, abs, -1) == 1
        assert session.agent_pids() == [begun.process.pid], (session.agent_pids(), begun.process.pid)
        assert session.run_id == begun.run_id
        with ropewalk.Session() as second:
            assert called(second, abs, -1) == 1
            assert second.run_id != session.run_id
    """
    run(script)


@pytest.mark.parametrize(
    "start",
    [
        """
    process = ropewalk.Process(target=print, args=("it ran",))
    process.start()
    process.join()
    assert process.exitcode == 0
    """,
        """
    with ropewalk.Pool(2) as pool:
        assert pool.apply(abs, (-1,)) == 1
    print("it ran")
    """,
    ],
    ids=["Process", "Pool"],
)
def test_the_first_one_begins_it_before_it_imports_what_takes_long(start: str) -> None:
    script = f"""
    import sys
    import ropewalk
    from ropewalk import interpreter_ahead
    begun = []
    begin = interpreter_ahead.start_job
    late = {{"msgspec", "dataclasses", "inspect", "logging", "tempfile"}}
    interpreter_ahead.start_job = lambda *arguments: begun.append(late & sys.modules.keys()) or begin(*arguments)
    {start}
    assert begun == [set()], begun
    """
    command = [sys.executable, "-P", "-c", textwrap.dedent(script)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (ended.returncode, ended.stdout) == (0, "it ran\n"), ended.stderr


@pytest.mark.parametrize("change", ["os.environ['SET_MEANWHILE'] = '1'", "os.chdir('/')"])
def test_one_that_would_be_started_otherwise_now_is_ended_and_replaced(change: str) -> None:
    script = f"""
    import ropewalk
    {change}
    with ropewalk.Session() as session:
        assert called(session, os.getcwd) == os.getcwd()
        assert called(session, os.getenv, "SET_MEANWHILE") == os.getenv("SET_MEANWHILE")
        assert session.agent_pids() != [begun.process.pid]
        assert begun.process.returncode == -9, begun.process.returncode
    """
    run(script)


@pytest.mark.parametrize("end", ["sys.exit(3)", "os._exit(3)"])
def test_one_that_no_session_uses_ends_with_its_launcher(end: str) -> None:
    pid = int(run(f"print(begun.process.pid, flush=True); {end}", exits=3))
    assert ends(pid)


def test_a_forked_child_leaves_it_to_its_parent() -> None:
    script = """
    import time
    child = os.fork()
    if not child:
        assert interpreter_ahead._ahead is None and interpreter_ahead.new_run_id("local") != begun.run_id
        assert begun.process.stdin.closed
        sys.exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert begun.process.poll() is None and interpreter_ahead.new_run_id("local") == begun.run_id
    """
    run(script)


def test_no_interpreter_starts_here_for_another_engine_or_beside_what_is_imported() -> None:
    assert run("print(begun)", engine="slurm") == "None\n"
    script = """
    interpreter_ahead.discard()
    assert begun.process.returncode == -9
    import ropewalk.processes.bootstrap
    interpreter_ahead.begin("local")
    assert interpreter_ahead._ahead is None
    """
    run(script)


def test_a_session_that_fails_leaves_none() -> None:
    script = """
    import ropewalk
    try:
        ropewalk.Session(engine_options={"unknown": 1}).lease()
    except ropewalk.errors.SettingsError:
        pass
    assert begun.process.returncode == -9, begun.process.returncode
    """
    run(script)
