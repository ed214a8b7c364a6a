"""The text of `ropewalk ps`, from what launchers answered."""

from __future__ import annotations

import io

from rich.console import Console

from ropewalk.cli.ps import LauncherReply, describe, render
from ropewalk.cli.submissions import RunState, Submission
from ropewalk.control.view import ProcessView, View
from ropewalk.control.view_text import described
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


def test_no_name_and_no_reason_makes_a_line_of_its_own() -> None:
    """A line break in the name of a host, or in what an engine says, made lines that looked like those of ps."""
    forged = "n1\nouter running, pid 1, pool, up 1 s: 1 idle\x1b[2J"
    found = reply("pool", 11, ProcessView(name="pool.0", pid=12, host=forged))
    job = Submission(id="x-1", engine="e", options={}, job="7", run_id="r", command=["f.py"], working_folder="/",
                     submitted=0.0, host="h")  # fmt: skip
    mute = LauncherReply(launcher("mute", 5), None, forged)
    text = describe([found, mute], [RunState(job, "running", reason=forged)])
    assert [line.split()[0] for line in text.split("\n")] == ["pool", "pool.0", "n1\\nouter", "submitted"]
    assert "\x1b" not in text
    assert [line.split()[0] for line in described(found.view).split("\n")] == ["pool", "pool.0"]  # type: ignore[arg-type]


def test_on_a_terminal_too() -> None:
    shown = io.StringIO()
    Console(file=shown, width=200).print(render(REPLIES))
    starts = [line[: len(line) - len(line.lstrip())] for line in shown.getvalue().splitlines()]
    assert starts[0] == "" and starts[3].startswith("  ")
    assert shown.getvalue().index("outer.0") < shown.getvalue().index("inner.0")


def test_a_narrow_terminal_cuts_no_number_and_shows_what_each_process_does() -> None:
    """At 80 columns the last column had a width of one letter, or none, and at 60 the pid read `25…`."""
    worker = ProcessView(
        name="worker.0", kind="worker", pid=25216, state="running", uptime_s=4.75, memory_bytes=26 << 20, cpu_s=0.03,
        is_counted=True, done=1234, waiting=17, host="node17", doing="scores.report", doing_s=0.129,
    )  # fmt: skip
    remark = "in scores.report for 129 ms"
    for width, num_lines in ((140, 3), (80, 4), (50, 4)):
        shown = io.StringIO()
        console = Console(file=shown, width=width)
        console.print(render([reply("pool", 11, worker)], width=console.width))
        words = " ".join(shown.getvalue().split())
        assert all(word in words for word in ("25216", "26 MiB", "1234", "node17", remark)), words
        assert len(shown.getvalue().splitlines()) == num_lines, shown.getvalue()
