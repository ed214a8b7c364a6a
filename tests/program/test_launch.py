"""Launching: what is refused before anything starts, and which way is taken."""

from __future__ import annotations

import atexit
import os
import signal

import pytest

import ropewalk as rw


def work() -> None: ...


def program_of_one() -> rw.Program:
    program = rw.Program("demo")
    program.add(rw.Worker(work))
    return program


def test_references_do_not_travel_between_processes() -> None:
    with pytest.raises(ValueError, match=r'copy=False needs mode="threads"'):
        program_of_one().launch(mode="processes", copy=False)


def test_an_invalid_program_is_told_before_anything_starts() -> None:
    program = rw.Program("broken")
    program.declare("nobody")
    program.add(rw.Worker(work, 1, 2))
    with pytest.raises(rw.ProgramInvalid):
        program.launch(mode="threads")


def test_the_mode_may_come_from_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPEWALK_MODE", "threads")
    with program_of_one().launch() as running:
        assert running.status().mode == "threads"


def test_the_same_program_can_be_launched_twice_at_once() -> None:
    program = program_of_one()
    with rw.launch(program, mode="threads") as first, rw.launch(program, mode="threads") as second:
        assert first.wait(120) and second.wait(120)


class EndsAgain:
    """Gets SIGTERM in a callback of atexit, as from a stop whose grace is over while the process is ending."""

    def __init__(self) -> None:
        atexit.register(os.kill, os.getpid(), signal.SIGTERM)
        atexit.register(print, "ending", flush=True)

    @rw.method
    def ready(self) -> bool:
        return True


def test_a_node_that_is_ending_is_not_torn_by_another_request_to_end(capfd: pytest.CaptureFixture[str]) -> None:
    # Exception ignored in atexit callback ... SystemExit: 143
    program = rw.Program("ending")
    program.add(rw.Service(EndsAgain))
    with rw.Session() as session:  # its end shows all output
        running = program.launch("processes", session=session)
        running.wait_ready()
        running.stop()
    said = capfd.readouterr()
    assert "ending" in said.out
    assert "atexit" not in said.err and "SystemExit" not in said.err
