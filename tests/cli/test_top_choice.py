"""What follows from the keys of `ropewalk top`."""

from __future__ import annotations

import pytest

from ropewalk.cli.top_choice import SORTS, AskedAction, Leave, TopChoice, sorted_processes, sorted_things, total
from ropewalk.control.view import View
from ropewalk.page.watcher import Seen
from tests.cli.pretend_source import START, PretendSource, process, view, watched


def things_of(source: PretendSource) -> list[Seen]:
    return watched(source).things()


def press(choice: TopChoice, things: list[Seen], *keys: str) -> list[object]:
    answers: list[object] = []
    for key in keys:
        choice.settle(things)
        answers.append(choice.pressed(key, things))
    choice.settle(things)
    return answers


@pytest.fixture
def things() -> list[Seen]:
    pool = view("a", process("worker.10"), process("worker.2"), process("worker.1"), started=START + 2)
    return things_of(PretendSource(pool, view("b", started=START)))


@pytest.mark.parametrize(("kind", "expected"), [("pool", 18.0), ("trainer", 10.0)])
def test_a_step_of_a_trainer_is_counted_once_although_each_stage_takes_it(kind: str, expected: float) -> None:
    def at(seconds: float, *done: int) -> View:
        return view(
            "a", *(process(f"stages.{n}", done=one) for n, one in enumerate(done)), at=START + seconds, kind=kind
        )

    things = watched(PretendSource(at(60, 0, 0)), at(62, 20, 16)).things()
    assert total(things[0], "rate") == expected


def test_the_first_thing_is_chosen_by_itself_and_keys_move(things: list[Seen]) -> None:
    choice = TopChoice()
    choice.settle(things)
    assert choice.id == "a"
    press(choice, things, "down")
    assert choice.id == "b"
    press(choice, things, "down", "down")
    assert choice.id == "b"
    press(choice, things, "home")
    assert choice.id == "a"


def test_enter_moves_among_processes_whose_numbers_are_ordered(things: list[Seen]) -> None:
    choice = TopChoice()
    press(choice, things, "enter", "down", "down")
    assert (choice.in_processes, choice.process) == (True, "worker.10")
    press(choice, things, "page up")
    assert choice.process == "worker.1"
    press(choice, things, "escape", "down", "enter")
    assert (choice.id, choice.in_processes) == ("b", False)  # it has no processes


def test_a_kill_is_asked_for_only_after_a_yes(things: list[Seen]) -> None:
    choice = TopChoice()
    assert press(choice, things, "enter", "down", "k", "n") == [None] * 4
    assert choice.message == "not done"
    assert press(choice, things, "k", "y") == [None, AskedAction("a", "kill", "worker.2")]
    assert choice.question is None
    assert press(choice, things, "escape", "k", "y")[-1] == AskedAction("a", "stop")


def test_a_key_that_ends_other_things_only_answers_a_question(things: list[Seen]) -> None:
    choice = TopChoice()
    assert press(choice, things, "k", "resize", "q") == [None, None, None]
    assert press(choice, things, "q") == [Leave()]


def test_what_cannot_be_killed_is_not_asked_for() -> None:
    things = things_of(PretendSource(view("a", process("main.0"), actions=(), process_actions=("stack",))))
    choice = TopChoice()
    press(choice, things, "k")
    assert "cannot be asked to stop" in choice.message
    press(choice, things, "enter", "k")
    assert "cannot be asked to kill" in choice.message
    assert choice.question is None


def test_a_question_about_what_has_gone_is_dropped(things: list[Seen]) -> None:
    choice = TopChoice()
    press(choice, things, "enter", "k")
    assert choice.question is not None
    choice.settle([one for one in things if one.view.id == "b"])
    assert choice.question is None
    assert choice.id == "b"
    assert choice.pressed("y", things) is None


def test_what_does_not_answer_is_not_asked_for_anything() -> None:
    source = PretendSource(view("a", process("worker.0")))
    watcher = watched(source)
    source.problems["a"] = "it did not answer within 5 s"
    watcher.look()
    choice = TopChoice()
    press(choice, watcher.things(), "k")
    assert choice.question is None
    assert "does not answer" in choice.message


def test_rows_are_sorted_by_what_was_measured_between_two_looks() -> None:
    def at(seconds: float, *done: int) -> list[object]:
        busy = [
            process(f"worker.{number}", done=count, cpu_s=-count, memory_bytes=10 - number, silent_s=float(number == 1))
            for number, count in enumerate(done)
        ]
        return [view("a", at=START + seconds), view("b", *busy, at=START + seconds, started=START - 5)]

    source = PretendSource(*at(60, 0, 0, 0))  # type: ignore[arg-type]
    things = watched(source, *at(62, 2, 4, 8)).things()  # type: ignore[arg-type]
    assert [one.view.id for one in things] == ["a", "b"]
    assert [one.view.id for one in sorted_things(things, "rate")] == ["b", "a"]

    def order(sort: str) -> list[str]:
        return [one.name[-1] for one in sorted_processes(things[1], sort)]

    assert {sort: "".join(order(sort)) for sort in SORTS} == {
        "order": "012", "rate": "210", "cpu": "012", "memory": "012", "silence": "102",
    }  # fmt: skip


def test_the_choice_stays_with_its_name_when_rows_move(things: list[Seen]) -> None:
    choice = TopChoice()
    press(choice, things, "enter", "down", *["s"] * 3)
    assert (choice.sort, choice.process) == ("memory", "worker.2")
