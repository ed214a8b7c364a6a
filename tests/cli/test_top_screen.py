"""What `ropewalk top` draws."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from ropewalk.cli.top_choice import TopChoice
from ropewalk.cli.top_screen import listing, screen, to_json
from ropewalk.control.view import EventView
from ropewalk.page.watcher import Seen
from tests.cli.pretend_source import START, PretendSource, process, view, watched


def drawn(things: list[Seen], choice: TopChoice | None = None, size: tuple[int, int] = (80, 24)) -> list[str]:
    choice = choice or TopChoice()
    choice.settle(things)
    text = screen(things, choice, size, START, looked=True)
    return text.plain.split("\n")


def crowd(num_things: int, num_processes: int) -> list[Seen]:
    return watched(
        PretendSource(
            *(
                view(
                    f"t{number}",
                    *(process(f"worker.{at}", last_cause="it ran out of memory " * 20) for at in range(num_processes)),
                    name="名前" * 40,
                    last_failure="worker.3 was killed " * 20,
                    facts={"tasks_per_s": 12.25, "memory_bytes": 2**30, "left_s": 90.0},
                    events=(EventView(text="it began"), EventView(text="it was killed", at=START)),
                )
                for number in range(num_things)
            )
        )
    ).things()


@pytest.mark.parametrize("size", [(80, 24), (20, 5), (40, 8), (200, 60), (1, 1)])
@pytest.mark.parametrize(("num_things", "num_processes"), [(0, 0), (1, 0), (1, 500), (60, 3)])
def test_a_screen_is_never_larger_than_the_terminal(size: tuple[int, int], num_things: int, num_processes: int) -> None:
    things = crowd(num_things, num_processes)
    text = screen(things, chosen(things), size, START, looked=True)
    lines = text.split("\n", allow_blank=True)
    assert len(lines) == size[1]
    assert max(line.cell_len for line in lines) <= size[0]


def chosen(things: list[Seen]) -> TopChoice:
    choice = TopChoice(in_processes=True)
    choice.settle(things)
    choice.in_processes = bool(choice.process)
    return choice


def test_80_by_24_shows_the_chosen_process_with_the_cause_of_its_end_and_the_keys() -> None:
    things = crowd(60, 500)
    choice = chosen(things)
    choice.id, choice.process = "t30", "worker.250"
    lines = drawn(things, choice)
    marked = [line for line in lines if line.startswith("> ")]
    assert len(marked) == 2
    assert marked[1].startswith("> worker.250 ")
    assert any(line.startswith("worker.250 last ended because: it ran out of memory") for line in lines)
    assert any(line.startswith("last failure: worker.3 was killed") for line in lines)
    assert "k kill" in lines[-1]


def test_long_names_of_processes_keep_their_ends_by_which_they_differ() -> None:
    """All workers of a pool with a long name had the same name, `pool-wwwwwwww…`."""
    names = [f"{name}.{at}" for name in ("evaluation-of-candidates", "名前" * 8) for at in range(12)]
    things = watched(PretendSource(view("t", *map(process, names)))).things()
    shown = {line.split()[0] for line in listing(things).split("\n") if line}
    assert {"…-candidates.0", "…candidates.11", "…前名前名前.0", "…前名前名前.11"} <= shown


def test_a_narrow_terminal_marks_what_failed_and_a_wide_one_says_why() -> None:
    things = watched(PretendSource(view("a"), view("b", last_failure="worker.3 was killed by SIGKILL"))).things()
    narrow, wide = drawn(things), drawn(things, size=(120, 24))
    head, *rows = (line.split() for line in narrow if " pool" in line or " state " in line)
    assert "!" in head and "last" not in head
    assert [row[3] == "!" for row in sorted(row[row[0] == ">" :] for row in rows)] == [False, True]
    assert any(line.rstrip().endswith("worker.3 was killed by SIGKILL") for line in wide[:4])
    assert not any("!" in line for line in wide)


def test_numbers_of_the_view_are_shown() -> None:
    def at(seconds: float, done: int, cpu_s: float) -> object:
        one = process(
            "worker.0", done=done, cpu_s=cpu_s, memory_bytes=300 << 20, silent_s=2.5, waiting=9, restarts=2,
            straggler=True, doing="evaluate(3)", doing_s=4.0,
        )  # fmt: skip
        return view("a", one, at=START + seconds)

    source = PretendSource(at(60, 100, 10.0))  # type: ignore[arg-type]
    things = watched(source, at(62, 130, 11.5)).things()  # type: ignore[arg-type]
    row = next(line for line in drawn(things, size=(120, 24)) if "worker.0" in line)
    assert row.split() == [
        "worker.0", "running", "this", "host", "7", "15.0", "130", "9", "75%", "300", "MiB", "2.5s", "2",
        "slow,", "evaluate(3)", "for", "4", "s",
    ]  # fmt: skip
    assert to_json(things)["things"][0]["processes"][0]["rate_per_s"] == 15.0
    assert to_json(things)["things"][0]["cpu_cores"] == 0.75


def test_a_process_of_which_nothing_is_counted_shows_no_numbers() -> None:
    views = [view("a", process("actor.0", is_counted=False), at=START + seconds) for seconds in (60, 62)]
    things = watched(PretendSource(views[0]), views[1]).things()
    row = next(line for line in drawn(things, size=(120, 24)) if "actor.0" in line)
    assert row.split()[:7] == ["actor.0", "running", "this", "host", "7", "-", "-"]


def test_text_of_processes_cannot_control_the_terminal() -> None:
    bad = "a\x1b[2J\x1b]0;title\x07\u202e[bold]b[/bold]\nnew line"
    one = process(bad, state=bad, doing=bad, host=bad, last_cause=bad)
    things = watched(
        PretendSource(view("a", one, name=bad, last_failure=bad, run=bad, facts={bad: bad},
                           events=(EventView(text=bad),)))
    ).things()  # fmt: skip
    choice = chosen(things)
    choice.pressed("k", things)
    for text in (screen(things, choice, (200, 40), START, looked=True), listing(things)):
        file = io.StringIO()
        Console(file=file, force_terminal=False, width=300, highlight=False, markup=False).print(text)
        output = file.getvalue()
        assert not {"\x1b", "\x07", "\u202e"} & set(output)
        assert "[bold]b[/bold]" in output
        assert "\nnew line" not in output


def test_without_colours_what_is_chosen_is_still_marked() -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=80, no_color=True, color_system=None)
    console.print(screen(crowd(3, 3), chosen(crowd(3, 3)), (80, 24), START, looked=True))
    assert sum(line.startswith("> ") for line in file.getvalue().split("\n")) == 2
    assert "\x1b[3" not in file.getvalue()


def test_what_does_not_answer_or_has_ended_says_so() -> None:
    source = PretendSource(view("a"), view("b"))
    watcher = watched(source)
    source.problems["a"] = "launcher 12 has not answered within 5 s"
    source.views = []
    watcher.look()
    lines = drawn(watcher.things(), size=(120, 24))
    assert any("pool-a" in line and "silent" in line and "has not answered" in line for line in lines)
    assert any("pool-b" in line and "ended" in line for line in lines)


def test_a_screen_says_how_old_it_is_if_looks_do_not_come_any_more() -> None:
    things = crowd(1, 1)
    assert "12 s old" in screen(things, chosen(things), (80, 24), START, looked=True, late_s=12.0).plain.split("\n")[0]
    assert " old" not in drawn(things)[0]


def test_a_question_names_the_process_and_its_pid() -> None:
    things = watched(PretendSource(view("a", process("worker.0", pid=4711)))).things()
    choice = chosen(things)
    choice.pressed("k", things)
    assert drawn(things, choice)[-1].startswith("kill worker.0 (pid 4711)? y: yes")


def test_a_listing_has_every_process_and_whole_causes() -> None:
    text = listing(crowd(2, 40))
    assert text.count("worker.39 ") == 2
    assert "it ran out of memory " * 19 in text
