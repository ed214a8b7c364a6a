"""Calls that are done once: numbers at the caller, the table at the object, and every loss and restart between them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ropewalk.calls.once import CallName, CallStanding, Done, NumberRuns, OnceTable
from ropewalk.calls.sequences import Sequence


def name(sequence: int, owner: str = "actor", generation: int = 0) -> CallName:
    return CallName(owner, generation, sequence)


ANSWER = Done([b"answer"])


def test_a_call_is_new_once_then_runs_then_has_its_answer_until_the_caller_has_it() -> None:
    table = OnceTable()
    assert table.arrive(name(1), 0) is CallStanding.NEW
    assert table.arrive(name(1), 0) is CallStanding.RUNS
    table.done(name(1), ANSWER)
    assert table.arrive(name(1), 0) == ANSWER
    assert table.arrive(name(2), 1) is CallStanding.NEW
    assert table.arrive(name(1), 0) is CallStanding.OLD
    assert table.state_dict() == {"actor": (0, 1, {})}, "the answer is kept no longer"


def test_a_call_that_ended_undone_is_new_again() -> None:
    table = OnceTable()
    table.arrive(name(1), 0)
    table.undone(name(1))
    assert table.arrive(name(1), 0) is CallStanding.NEW


def test_callers_do_not_share_numbers_and_the_next_life_of_one_begins_anew() -> None:
    table = OnceTable()
    for owner in ("actor", "learner"):
        assert table.arrive(name(1, owner), 0) is CallStanding.NEW
    assert table.arrive(name(1, generation=1), 0) is CallStanding.NEW
    table.done(name(1), ANSWER)  # of the life that has ended: nobody will ask for it
    assert table.arrive(name(1, generation=1), 0) is CallStanding.RUNS
    assert table.arrive(name(2), 0) is CallStanding.OLD


def test_what_was_done_is_known_after_a_restart_and_what_ran_is_new() -> None:
    table, successor = OnceTable(), OnceTable()
    for sequence in (1, 2):
        table.arrive(name(sequence), 0)
    table.done(name(1), ANSWER)
    successor.load_state_dict(table.state_dict())
    assert successor.arrive(name(1), 0) == ANSWER and successor.arrive(name(2), 0) is CallStanding.NEW


def test_answers_are_let_go_of_though_an_earlier_call_stays_open() -> None:
    # A call that waits for hours kept the answers to all that its caller asked meanwhile.
    sequence, table = Sequence(), OnceTable()
    assert table.arrive(name(sequence.next()), *sequence.acknowledgement()) is CallStanding.NEW  # waits
    for _ in range(100):
        number = sequence.next()
        assert table.arrive(name(number), *sequence.acknowledgement()) is CallStanding.NEW
        table.done(name(number), ANSWER)
        sequence.over(number)
    assert len(table.state_dict()["actor"][2]) <= 1
    sequence.over(1)
    assert sequence.acknowledgement() == (101, [])


def test_a_call_that_arrives_after_its_answer_was_acknowledged_does_not_run_again() -> None:
    # The link over which it was sent first was given up, and TCP delivered its last bytes a second later.
    sequence, table = Sequence(), OnceTable()
    first, second = sequence.next(), sequence.next()
    for number in (first, second):
        assert table.arrive(name(number), 0) is CallStanding.NEW
    table.done(name(second), ANSWER)
    sequence.over(second)
    assert table.arrive(name(sequence.next()), *sequence.acknowledgement()) is CallStanding.NEW
    assert table.arrive(name(second), 0) is CallStanding.OLD
    sequence.over(first)
    assert table.arrive(name(sequence.next()), *sequence.acknowledgement()) is CallStanding.NEW
    assert table.arrive(name(second), 0) is CallStanding.OLD


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 30)), max_size=80))
def test_the_calls_that_are_over_are_those_of_which_the_caller_said_so(said: list[tuple[bool, int]]) -> None:
    table, up_to, over = OnceTable(), 0, set[int]()
    for all_before, number in said:
        up_to = max(up_to, number) if all_before else up_to
        over |= set[int]() if all_before else {number}
        table.arrive(name(1000), up_to, [] if all_before else [number])
        for one in range(1, 32):
            standing = table.arrive(name(one), 0)
            assert (standing is CallStanding.OLD) == (one <= up_to or one in over)
            if standing is CallStanding.NEW:
                table.undone(name(one))


@given(st.lists(st.tuples(st.sampled_from(["add", "add", "add", "drop"]), st.integers(1, 20)), max_size=60))
def test_numbers_are_kept_as_runs_of_neighbours(steps: list[tuple[str, int]]) -> None:
    runs, numbers = NumberRuns(), set[int]()
    for step, number in steps:
        if step == "add":
            runs.add(number)
            numbers.add(number)
        else:
            runs.drop_to(number)
            numbers = {one for one in numbers if one > number}
        assert [one for one in range(25) if one in runs] == sorted(numbers)
        assert runs.num_runs == sum(one - 1 not in numbers for one in numbers), "neighbours are one run"


def test_calls_that_are_over_take_no_memory_once_all_before_them_are() -> None:
    table = OnceTable()
    table.arrive(name(9), 0, [2, 4, 6])
    assert table._streams["actor"].also_acked.num_runs == 3
    table.arrive(name(9), 5)
    assert table._streams["actor"].also_acked.num_runs == 1
    table.arrive(name(9), 7)
    assert table._streams["actor"].also_acked.num_runs == 0


@dataclass
class Service:
    """An object that appends, and its table; both are saved in one moment."""

    done: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    table: OnceTable = field(default_factory=OnceTable)
    saved: Any = ([], {})

    def save(self) -> None:
        self.saved = list(self.done), self.table.state_dict()

    def restart(self) -> None:
        self.done, self.table = list(self.saved[0]), OnceTable()
        self.table.load_state_dict(self.saved[1])


STEPS = st.lists(
    st.tuples(st.sampled_from(["call", "ask lost", "answer lost", "save", "restart"]), st.sampled_from("ab")),
    max_size=60,
)


@given(STEPS)
def test_whatever_is_lost_a_call_has_no_more_than_one_effect_and_none_is_missed_since_the_last_checkpoint(
    steps: list[tuple[str, str]],
) -> None:
    service, sequences = Service(), {"a": Sequence(), "b": Sequence()}
    open_calls: dict[str, int] = {}
    answered: list[tuple[str, int]] = []
    """Calls whose callers have an answer that no restart has outdated."""

    def ask(caller: str, *, heard: bool) -> None:
        number = open_calls[caller]
        standing = service.table.arrive(name(number, caller), *sequences[caller].acknowledgement())
        if standing is CallStanding.NEW:
            service.done.append((caller, number))
            service.table.done(name(number, caller), Done([str(number).encode()]))
        else:
            assert standing == Done([str(number).encode()]), "the answer is the one to this very call"
        if heard:
            sequences[caller].over(open_calls.pop(caller))
            answered.append((caller, number))

    for step, caller in steps:
        if step == "save":
            service.save()
        elif step == "restart":
            service.restart()
            answered = [call for call in answered if call in service.done]  # what came after the checkpoint is lost
        else:
            open_calls[caller] = open_calls.get(caller) or sequences[caller].next()
            if step != "ask lost":
                ask(caller, heard=step == "call")
        assert len(service.done) == len(set(service.done)), "a call was done twice"
        assert set(answered) <= set(service.done), "a call was answered and not done"


def test_an_answer_that_its_caller_has_already_is_not_kept() -> None:
    table = OnceTable()
    table.arrive(name(1), 0)
    table.arrive(name(2), 1)  # it has had an answer to the first from another replica
    table.done(name(1), ANSWER)
    assert table.state_dict() == {"actor": (0, 1, {})}
    table.done(name(2), ANSWER)
    assert table.state_dict() == {"actor": (0, 1, {2: ANSWER})}


def test_numbers_begin_with_one() -> None:
    table = OnceTable()
    assert len(table) == 0
    assert table.arrive(name(0), 0) is CallStanding.OLD
    assert table.state_dict() == {"actor": (0, 0, {})} and len(table) == 1
