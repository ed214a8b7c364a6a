"""`ropewalk top`, in a terminal and for scripts, beside a program that pretends to run."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Generator

import pytest
from rich.console import Console
from rich.live import Live

from ropewalk.cli.keyboard import Keyboard
from ropewalk.cli.top import _Looks, _step, print_once
from ropewalk.cli.top_choice import TopChoice
from ropewalk.page.watcher import LookResult, Watcher
from tests.cli.command import environment, ropewalk
from tests.cli.pretend_source import START, PretendSource, process, view
from tests.control.pretend import Pretence, controlled
from tests.patience import PATIENCE_S


class Screen:
    """A terminal of 80 columns and 24 lines in which the command runs, and all that it has drawn."""

    def __init__(self, user: int, command: subprocess.Popen[bytes]) -> None:
        self.user, self.command, self.drawn = user, command, ""

    def wait_for(self, text: str, *, after: int = 0) -> None:
        due = time.monotonic() + PATIENCE_S
        while text not in self.drawn[after:]:
            ready, _, _ = select.select([self.user], [], [], max(0.0, due - time.monotonic()))
            assert ready, f"{text!r} was not drawn, but {self.drawn[-2000:]!r}"
            self.drawn += os.read(self.user, 1 << 16).decode(errors="replace")

    def press(self, keys: bytes, then: str) -> None:
        """Press keys, and wait until a text is drawn after that."""
        before = len(self.drawn)
        os.write(self.user, keys)
        self.wait_for(then, after=before)

    def end(self) -> int:
        """Read what is drawn until the end of the command."""
        while self.command.poll() is None:
            if select.select([self.user], [], [], 0.05)[0]:
                self.drawn += os.read(self.user, 1 << 16).decode(errors="replace")
        return self.command.returncode


@contextlib.contextmanager
def top_in_a_terminal(*arguments: str) -> Generator[Screen]:
    user, program = pty.openpty()
    termios.tcsetwinsize(program, (24, 80))
    before = termios.tcgetattr(program)
    surroundings = environment(TERM="xterm")
    del surroundings["COLUMNS"]
    command = subprocess.Popen(
        [sys.executable, "-m", "ropewalk", *(arguments or ("top",))],
        env=surroundings, stdin=program, stdout=program, stderr=program,
        start_new_session=True,
    )  # fmt: skip
    try:
        yield Screen(user, command)
        assert termios.tcgetattr(program) == before
    finally:
        command.kill()
        command.wait()
        os.close(user)
        os.close(program)


def test_a_process_is_chosen_and_killed_by_keys_and_ctrl_c_restores_the_terminal() -> None:
    target = Pretence("walk-top")
    asked: list[tuple[str, str]] = []
    target.act = lambda action, process: asked.append((action, process)) or f"{process} is gone"  # type: ignore[method-assign]
    with controlled(target), top_in_a_terminal() as screen:
        screen.wait_for("walk-top")
        screen.press(b"\x1b[F", "replay.0")  # the last one: it began in 2023
        screen.press(b"\r", "esc back")
        screen.press(b"\x1b[B\x1b[Bk", "kill replay.0 (pid 4711)? y")
        screen.press(b"n", "not done")
        screen.press(b"k", "kill replay.0 (pid 4711)? y")
        assert asked == []
        screen.press(b"y", "replay.0 is gone")
        assert asked == [("kill", "replay.0")]
        os.kill(screen.command.pid, signal.SIGINT)
        assert screen.end() == 130
        assert screen.drawn.count("\x1b[?1049h") == screen.drawn.count("\x1b[?1049l") == 1  # the other screen, and back


@pytest.mark.parametrize(
    ("arguments", "number", "code"), [(("top",), signal.SIGTERM, 143), (("ps", "--watch"), None, 0)]
)
def test_a_signal_and_a_key_end_it_and_restore_the_terminal(
    arguments: tuple[str, ...], number: int | None, code: int
) -> None:
    with controlled(Pretence("walk-top")), top_in_a_terminal(*arguments) as screen:
        screen.wait_for("walk-top")
        if number is None:
            os.write(screen.user, b"q")
        else:
            os.kill(screen.command.pid, number)
        assert screen.end() == code
        assert screen.drawn.count("\x1b[?1049l") == 1


class _NoKeys(Keyboard):
    """A keyboard on which nobody presses a key."""

    def __init__(self) -> None:
        super().__init__(-1)

    def read(self, timeout_s: float) -> list[str]:
        return []


def test_the_watcher_goes_on_while_no_key_is_pressed() -> None:
    # The page asks for looks again and again, which hold for ten seconds; the command asked once, and then stood still.
    now = 0.0
    watcher, console = Watcher(PretendSource(view("a")), clock=lambda: now), Console(file=io.StringIO())
    live = Live(console=console, auto_refresh=False)
    for _ in range(3):
        now += 60.0
        assert _step(watcher, _Looks(), TopChoice(), PretendSource(), _NoKeys(), live)  # type: ignore[arg-type]
        assert watcher.is_wanted()


def test_once_prints_everything_for_scripts() -> None:
    with controlled(Pretence("walk-once")):
        text, as_json = ropewalk("top", "--once"), ropewalk("top", "--json")
    assert text.returncode == 0
    assert "walk-once" in text.stdout and "replay.0" in text.stdout
    (thing,) = [one for one in json.loads(as_json.stdout)["things"] if one["name"] == "walk-once"]
    assert thing["processes"][0]["pid"] == 4711
    assert thing["problem"] == ""


class _SlowSource(PretendSource):
    """Has no answer of its launcher for two looks."""

    num_looks = 0

    def look(self, panels: object) -> list[LookResult]:
        self.num_looks += 1
        return super().look({}) if self.num_looks > 2 else [LookResult("a", None)]


def test_once_looks_again_until_a_slow_launcher_has_answered(capsys: pytest.CaptureFixture[str]) -> None:
    waits: list[float] = []
    source = _SlowSource(view("a", process("worker.0"), at=START + 5))
    assert print_once(source, as_json=False, wait=waits.append) == 0
    assert "worker.0" in capsys.readouterr().out
    assert len(waits) == 2


def test_once_fails_where_a_launcher_does_not_answer(capsys: pytest.CaptureFixture[str]) -> None:
    source = PretendSource(view("a", process("worker.0")))

    def wait(_: float) -> None:
        source.problems["a"] = "launcher 12 has not answered"

    assert print_once(source, as_json=False, wait=wait) == 1
    assert "has not answered" in capsys.readouterr().out


@pytest.mark.parametrize("problem", ["", "launcher 12 is stopped"])
def test_once_does_not_say_that_nothing_runs_where_a_launcher_is_stopped(
    problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    class Stopped(PretendSource):
        def look(self, panels: object) -> list[LookResult]:
            return [LookResult("a", None, problem)]

    assert print_once(Stopped(), as_json=False, wait=lambda _: None) == 1
    assert capsys.readouterr().out.strip() == (problem or "no answer from 1 launcher; `ropewalk ps` says why")


def test_once_says_that_nothing_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert print_once(PretendSource(), as_json=False, wait=lambda _: None) == 0
    assert capsys.readouterr().out == "this user runs nothing on this machine\n"
