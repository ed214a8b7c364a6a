"""The text of `ropewalk ps`, from what launchers answered."""

from __future__ import annotations

import io

from rich.console import Console

from ropewalk.cli.ps import LauncherReply, describe, render
from ropewalk.control.view import ProcessView, View
from tests.cli.test_choosing import launcher


def reply(name: str, pid: int, *processes: ProcessView, started: float = 0.0) -> LauncherReply:
    view = View(kind="pool", name=name, id=name, pid=pid, state="running", started=started, at=9.0, processes=processes)
    return LauncherReply(launcher(name, pid, "pool"), view)


REPLIES = [
    reply("inner", 12, ProcessView(name="inner.0", pid=13), started=1.0),
    LauncherReply(launcher("mute", 5), None, "mute has not answered for 5 s"),
    reply("outer", 11, ProcessView(name="outer.0", pid=12)),
]


def test_what_a_worker_launched_stands_indented_below_it() -> None:
    lines = describe(REPLIES).splitlines()
    assert [line.split()[0] for line in lines] == ["outer", "outer.0", "inner", "inner.0", "mute"]
    assert [len(line) - len(line.lstrip()) for line in lines] == [0, 2, 2, 4, 0]


def test_on_a_terminal_too() -> None:
    shown = io.StringIO()
    Console(file=shown, width=200).print(render(REPLIES))
    starts = [line[: len(line) - len(line.lstrip())] for line in shown.getvalue().splitlines()]
    assert starts[0] == "" and starts[3].startswith("  ")
    assert shown.getvalue().index("outer.0") < shown.getvalue().index("inner.0")
