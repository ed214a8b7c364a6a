"""A session that is closed under what uses it: every waiter is told, by name, and nothing hangs."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import ropewalk as rw
from ropewalk.processes.open_sessions import close_all
from tests.patience import wait_until
from tests.scenarios.launchers import kill
from tests.scenarios.services import Counter, pid_of, serve_until_stopped, status_of
from tests.scenarios.tasks import wait_for_file

SOON_S = 120.0


def waits(call: Any) -> tuple[threading.Thread, list[BaseException | None]]:
    """A thread that waits for something, and what it raised."""
    raised: list[BaseException | None] = []

    def wait() -> None:
        try:
            call()
            raised.append(None)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread, raised


def test_a_program_whose_session_is_closed_ends_and_everyone_who_waits_for_it_is_told(tmp_path: Path) -> None:
    # `wait` never returned and `stop` hung: the loop had ended, and with it all that would have told them.
    program = rw.Program("shared")
    program.add(rw.Service(Counter), name="counter")
    program.add(rw.Worker(serve_until_stopped))
    with rw.Session() as session:
        running = program.launch(session=session)
        running.wait_ready(120)
        counter = running.client("counter")
        path = str(tmp_path / "notes")
        caller, lost = waits(lambda: counter.sleep(3600, path))
        waiter, raised = waits(running.wait)
        wait_for_file(path)
    for thread in (caller, waiter):
        thread.join(SOON_S)
        assert not thread.is_alive()
    assert isinstance(raised[0], rw.PoolClosed) and "the session was closed" in str(raised[0])
    assert isinstance(lost[0], rw.ProgramStopped | rw.ServiceLost)
    running.stop()
    assert running.status().state == "stopped"
    with pytest.raises(rw.ProgramStopped):
        running.client("counter")


def test_a_program_that_waits_before_a_restart_is_told_as_well() -> None:
    # It has no process at that moment, and so it was not among those that were told.
    program = rw.Program("between")
    program.add(rw.Service(Counter), name="counter", restart=rw.Restart(backoff_s=600, backoff_max_s=600))
    with rw.Session() as session:
        running = program.launch(session=session)
        kill(pid_of(running, "counter"))  # after which it is restarted without a wait
        wait_until(lambda: (status_of(running, "counter").generation, running.wait_ready(1)) == (1, True))
        kill(pid_of(running, "counter"))
        wait_until(lambda: status_of(running, "counter").state == "restarting" and running.status().nodes[0].pid == 0)
    with pytest.raises(rw.PoolClosed, match="the session was closed"):
        running.wait(SOON_S)


def test_a_pool_whose_session_is_closed_tells_who_waits_for_its_results_and_can_be_left() -> None:
    # Leaving the pool's block hung in `join`, and then the interpreter's exit.
    with rw.Session() as session, rw.Pool(2, session=session) as pool:
        pool.wait_until_ready(120)
        waiting, raised = waits(pool.apply_async(time.sleep, (60,)).get)
        items, ended = waits(lambda: list(pool.imap(time.sleep, iter([60] * 10_000))))
        session.close()
        for thread in (waiting, items):
            thread.join(SOON_S)
            assert not thread.is_alive()
        assert isinstance(raised[0], rw.PoolClosed) and isinstance(ended[0], rw.PoolClosed)
        with pytest.raises(rw.PoolClosed, match="the session was closed"):
            pool.apply(abs, (-1,))


def test_pools_and_programs_share_a_session_and_its_end_ends_them_all() -> None:
    program = rw.Program("shared")
    program.add(rw.Service(Counter), name="counter")
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(rw.Pool(1))
        running = program.launch()
        running.wait_ready(120)
        assert pool.apply(abs, (-9,)) == 9
        close_all()
        with pytest.raises(rw.PoolClosed):
            running.wait(SOON_S)
    assert running.status().state == "stopped"


def test_a_script_that_leaves_a_pool_and_a_program_behind_ends_without_a_word() -> None:
    script = textwrap.dedent("""
        import time
        import ropewalk as rw

        class Store:
            def get(self):
                return 1

        if __name__ == "__main__":
            pool = rw.Pool(1)
            pool.apply(abs, (-1,))
            pool.apply_async(time.sleep, (60,))
            program = rw.Program("left")
            program.add(rw.Service(Store), name="store")
            running = program.launch()
            running.wait_ready(120)
            print("done")
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=200, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert "broken" not in done.stderr and "Traceback" not in done.stderr
