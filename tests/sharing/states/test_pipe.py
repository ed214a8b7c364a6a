"""Pipes towards other hosts: each rule by itself, and any order of calls, deaths and closed ends against lists."""

from __future__ import annotations

import bisect
import errno
from collections import deque
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ropewalk.sharing.states.pipe import PipeState
from ropewalk.sharing.states.waiting import CallOutcome, Passed, SizedItem, Waiter
from tests.sharing.states.desk import Desk, Parcel, party

A, B, C = party("a"), party("b"), party("c")

#: So much has room in one direction.
ROOM = 4


class PretendWire:
    """One end of a wire in memory; what processes of the depot's host would do to it, tests do.

    Args:
        fd: its number.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.arrived: deque[SizedItem] = deque()
        self.at_end = False
        self.closed = False
        self.watched = (False, False)
        self.other = self

    def receive(self) -> SizedItem | None:
        assert not self.closed
        if self.arrived:
            return self.arrived.popleft()
        self.at_end = self.other.closed
        return None

    def is_readable(self) -> bool:
        return bool(self.arrived) or self.other.closed

    def send(self, item: SizedItem) -> bool:
        assert not self.closed
        if self.other.closed:
            raise BrokenPipeError
        if sum(one.size_bytes for one in self.other.arrived) + item.size_bytes > ROOM:
            return False
        self.other.arrived.append(item)
        return True

    def has_room(self) -> bool:
        return sum(one.size_bytes for one in self.other.arrived) < ROOM

    def watch(self, reading: bool, writing: bool) -> None:
        assert not self.closed
        self.watched = reading, writing

    def close(self) -> None:
        self.closed = True
        self.watched = False, False
        self.arrived.clear()


def pretend_wires() -> tuple[PretendWire, PretendWire]:
    wires = PretendWire(10), PretendWire(11)
    wires[0].other, wires[1].other = wires[1], wires[0]
    return wires


class PipeDesk(Desk):
    """A desk with one pipe, whose loop looks after each call whether a watched wire is ready."""

    def __init__(self, duplex: bool = True, on_outcome: Callable[[CallOutcome], None] = lambda outcome: None) -> None:
        self.wires = pretend_wires()
        super().__init__(PipeState(self.wires, duplex), on_outcome=on_outcome)

    def _hear(self, outcomes: list[CallOutcome]) -> None:
        while outcomes:
            # Senders first: from them the model learns of messages, which others may have already.
            super()._hear(sorted(outcomes, key=lambda outcome: outcome.value is not None or bool(outcome.error)))
            outcomes = [outcome for end in (0, 1) if self.is_ready(end) for outcome in self.states[0].ready(end)]

    def is_ready(self, end: int) -> bool:
        wire = self.wires[end]
        reading, writing = wire.watched
        return (reading and wire.is_readable()) or (writing and wire.has_room())


def send(desk: Desk, label: object, *, end: int = 0, size_bytes: int = 1) -> Waiter:
    return desk.call(desk.states[0], "send", A, end, Parcel(label, size_bytes))


def recv(desk: Desk, *, end: int = 1, who: object = B) -> Waiter:
    return desk.call(desk.states[0], "recv", who, end)  # type: ignore[arg-type]


def close(desk: Desk, end: int, names: str = "Process-3 (pid 12 on n2)") -> None:
    desk._hear(desk.states[0].end_closed(end, names))


def test_both_ends_send_and_receive_in_order() -> None:
    desk = PipeDesk()
    send(desk, 1)
    send(desk, 2)
    send(desk, "back", end=1)
    assert [desk.end(recv(desk)), desk.end(recv(desk)), desk.end(recv(desk, end=0))] == [1, 2, "back"]


def test_a_one_way_pipe_refuses_the_other_way() -> None:
    desk = PipeDesk(duplex=False)
    (state,) = desk.states
    send(desk, "it", end=1)
    assert desk.ask(state, "poll", B, 0)
    assert desk.end(recv(desk, end=0)) == "it"
    with pytest.raises(OSError, match="connection is read-only"):
        desk.end(send(desk, "it", end=0))
    with pytest.raises(OSError, match="connection is write-only"):
        desk.end(recv(desk, end=1))
    with pytest.raises(OSError, match="connection is write-only"):
        desk.ask(state, "poll", B, 1)


def test_polls_are_answered_first_and_no_reader_is_left_out() -> None:
    desk = PipeDesk()
    (state,) = desk.states
    readers, polling = [recv(desk), recv(desk)], desk.call(state, "poll", C, 1)
    for label in (1, 2, 3):
        desk.wires[0].send(Parcel(label, 1))
    outcomes = state.ready(1)
    assert [outcome.waiter for outcome in outcomes] == [polling, *readers]
    assert [getattr(outcome.value, "label", outcome.value) for outcome in outcomes] == [True, 1, 2]


def test_an_end_that_is_closed_keeps_no_message() -> None:
    desk = PipeDesk()
    send(desk, "it")
    reader = recv(desk)
    desk.states[0].give_up(reader, timed_out=True)  # it is back
    assert len(desk.states[0]._ends[1]._line) == 1
    close(desk, 1)
    assert len(desk.states[0]._ends[1]._line) == 0


def test_poll_tells_when_a_message_comes_and_leaves_it_there() -> None:
    desk = PipeDesk()
    (state,) = desk.states
    polling, impatient = desk.call(state, "poll", B, 1), desk.call(state, "poll", C, 1)
    desk.time_over(impatient)
    assert desk.end(impatient) is False
    send(desk, "it")
    assert desk.end(polling) is True
    assert desk.ask(state, "poll", B, 1) is True
    assert desk.end(recv(desk)) == "it"


def test_those_that_poll_are_told_before_the_sender_goes_on() -> None:
    state = PipeState(pretend_wires())
    polling, sending = Waiter(B), Waiter(A)
    assert state.poll(polling, 1) == []
    outcomes = state.send(sending, 0, Parcel(1, 1))
    assert [outcome.waiter for outcome in outcomes] == [polling, sending]


def test_poll_does_not_tell_of_a_message_that_goes_to_another_reader() -> None:
    desk = PipeDesk()
    (state,) = desk.states
    recv(desk)
    polling = desk.call(state, "poll", C, 1)
    send(desk, "it")
    assert polling in desk.waiting
    desk.die("b")
    assert desk.end(polling) is True


def test_senders_wait_while_a_direction_holds_too_much() -> None:
    desk = PipeDesk()
    first = send(desk, 1, size_bytes=ROOM // 2)
    second = send(desk, 2, size_bytes=ROOM // 2)
    third, fourth = send(desk, 3), send(desk, 4, size_bytes=0)
    assert {first, second} == set(desk.ended)
    assert send(desk, "back", end=1) in desk.ended
    recv(desk)
    assert not {third, fourth} & set(desk.waiting)
    assert [desk.end(recv(desk)) for _ in range(3)] == [2, 3, 4]


def test_messages_behind_a_sender_that_gives_up_go_on() -> None:
    desk = PipeDesk()
    send(desk, "small")
    large = send(desk, "large", size_bytes=ROOM)
    behind = send(desk, "behind")
    assert behind in desk.waiting
    desk.time_over(large)
    with pytest.raises(TimeoutError, match="time"):
        desk.end(large)
    assert behind in desk.ended


def test_processes_of_this_host_and_others_share_an_end() -> None:
    desk = PipeDesk()
    waiter = desk.call(desk.states[0], "open", A, 1)
    assert desk.end(waiter) == Passed(11)
    reading = recv(desk)
    assert desk.wires[1].watched == (True, False)
    assert desk.wires[0].send(Parcel("from here"))
    desk._hear(desk.states[0].ready(1))
    assert desk.end(reading) == "from here"
    assert desk.wires[1].watched == (False, False)
    send(desk, "from there")
    assert desk.wires[1].receive() == Parcel("from there")


def test_nobody_looks_out_for_the_end_while_a_message_may_come_back() -> None:
    desk = PipeDesk()
    send(desk, "last")
    lent = recv(desk, who=C)
    close(desk, 0)
    waiting = recv(desk, who=B)
    assert desk.wires[1].watched == (False, False), "the kernel would announce the end again and again"
    desk.never_taken(lent)
    assert desk.end(waiting) == "last"


def test_a_process_of_this_host_is_told_who_held_the_other_end() -> None:
    desk = PipeDesk()
    assert desk.ask(desk.states[0], "last_holders", B, 1) == ""
    close(desk, 0)
    assert "last held by Process-3" in desk.ask(desk.states[0], "last_holders", B, 1)


def test_messages_that_were_not_taken_come_again_in_their_order() -> None:
    desk = PipeDesk()
    for number in range(4):
        send(desk, number)
    recv(desk, who=C)
    desk.never_taken(recv(desk, who=B))
    recv(desk, who=C)
    desk.die("c")
    assert [desk.end(recv(desk, who=B)) for _ in range(4)] == [0, 1, 2, 3]


def test_the_end_of_a_pipe_comes_after_its_last_message_and_names_who_held_it() -> None:
    desk = PipeDesk()
    (state,) = desk.states
    send(desk, "last")
    close(desk, 0)
    assert desk.end(recv(desk)) == "last"
    desk.taken(next(iter(desk.lent)))
    assert desk.ask(state, "poll", B, 1) is True
    with pytest.raises(EOFError, match="last held by Process-3 \\(pid 12 on n2\\)"):
        desk.end(recv(desk))


def test_readers_and_pollers_that_wait_hear_of_the_end() -> None:
    desk = PipeDesk()
    (state,) = desk.states
    reading, polling = recv(desk), desk.call(state, "poll", C, 1)
    close(desk, 0, "")
    assert desk.end(polling) is True
    with pytest.raises(EOFError, match=r"nobody holds the other end of this pipe$"):
        desk.end(reading)


@pytest.mark.parametrize("arrives", [True, False])
def test_a_reader_hears_of_the_end_only_when_the_last_message_has_arrived_elsewhere(arrives: bool) -> None:
    desk = PipeDesk()
    send(desk, "last")
    lent = recv(desk, who=C)
    close(desk, 0)
    waiting = recv(desk, who=B)
    assert waiting in desk.waiting
    if arrives:
        desk.taken(lent)
        with pytest.raises(EOFError):
            desk.end(waiting)
    else:
        desk.die("c")
        assert desk.end(waiting) == "last"


def test_sending_to_an_end_that_nobody_holds_is_a_broken_pipe() -> None:
    desk = PipeDesk()
    send(desk, 1, size_bytes=ROOM)
    waiting = send(desk, 2)
    close(desk, 1)
    for waiter in (waiting, send(desk, 3)):
        with pytest.raises(BrokenPipeError, match="last held by Process-3") as caught:
            desk.end(waiter)
        assert caught.value.errno == errno.EPIPE


def test_calls_under_way_at_an_end_that_is_closed_end() -> None:
    desk = PipeDesk()
    send(desk, 1, size_bytes=ROOM)
    sending, reading = send(desk, 2), recv(desk, end=0)
    close(desk, 0)
    for waiter in (sending, reading):
        with pytest.raises(OSError, match="handle is closed"):
            desk.end(waiter)
    assert desk.end(recv(desk)) == 1


SIZES = st.sampled_from([0, 1, ROOM // 2, ROOM])


class AnyOrder(RuleBasedStateMachine):
    """One direction, from end 0 to end 1. The model: a sorted list of the numbers that may be read, and who waits."""

    @initialize()
    def begin(self) -> None:
        self.desk = PipeDesk(on_outcome=self.heard)
        (self.state,) = self.desk.states
        self.parcels: list[Parcel] = []  # By their numbers in the pipe.
        self.inside: list[int] = []
        self.lent: dict[Waiter, int] = {}
        self.taken: list[int] = []
        self.senders: dict[Waiter, Parcel] = {}
        self.readers: dict[Waiter, None] = {}
        self.pollers: dict[Waiter, None] = {}
        self.no_sender = self.no_reader = False
        self.births = 0
        self.processes = [self.born() for _ in range(3)]

    def born(self) -> str:
        self.births += 1
        return str(self.births)

    def heard(self, outcome: CallOutcome) -> None:
        waiter = outcome.waiter
        if outcome.lent:
            assert waiter is next(iter(self.readers)), "not the first of those that wait"
            assert outcome.value is self.parcels[self.inside[0]], "not the first message"
            del self.readers[waiter]
            self.lent[waiter] = self.inside.pop(0)
        elif isinstance(outcome.error, BrokenPipeError):
            assert self.no_reader
            del self.senders[waiter]
        elif isinstance(outcome.error, EOFError):
            assert self.no_sender and not self.inside and not self.lent
            del self.readers[waiter]
        elif isinstance(outcome.error, OSError) and "closed" in str(outcome.error):
            for calls in (self.senders, self.readers, self.pollers):
                calls.pop(waiter, None)
        elif waiter in self.pollers and outcome.value is True:
            assert self.inside or self.no_sender
            del self.pollers[waiter]
        elif waiter in self.senders and outcome.error is None:
            assert waiter is next(iter(self.senders)), "not the first of those that wait"
            parcel = self.senders.pop(waiter)
            self.inside.append(len(self.parcels))
            self.parcels.append(parcel)

    def made(self, waiter: Waiter, outcomes: list[CallOutcome]) -> None:
        self.desk.waiting[waiter] = self.state
        self.desk._hear(outcomes)

    @precondition(lambda self: not self.no_sender)
    @rule(of=st.integers(0, 2), size_bytes=SIZES)
    def send(self, of: int, size_bytes: int) -> None:
        waiter, parcel = Waiter(party(self.processes[of])), Parcel(object(), size_bytes)
        self.senders[waiter] = parcel
        self.made(waiter, self.state.send(waiter, 0, parcel))

    @precondition(lambda self: not self.no_reader)
    @rule(of=st.integers(0, 2))
    def recv(self, of: int) -> None:
        waiter = Waiter(party(self.processes[of]))
        self.readers[waiter] = None
        self.made(waiter, self.state.recv(waiter, 1))

    @precondition(lambda self: not self.no_reader)
    @rule(of=st.integers(0, 2))
    def poll(self, of: int) -> None:
        waiter = Waiter(party(self.processes[of]))
        self.pollers[waiter] = None
        self.made(waiter, self.state.poll(waiter, 1))

    @precondition(lambda self: self.lent)
    @rule(data=st.data(), arrives=st.booleans())
    def end_of_loan(self, data: st.DataObject, arrives: bool) -> None:
        waiter = data.draw(st.sampled_from(list(self.lent)))
        number = self.lent.pop(waiter)
        if arrives:
            self.taken.append(number)
            self.desk.taken(waiter)
        else:
            if not self.no_reader:
                bisect.insort(self.inside, number)
            self.desk.never_taken(waiter)

    @precondition(lambda self: self.senders or self.readers or self.pollers)
    @rule(data=st.data(), timed_out=st.booleans())
    def end_of_patience(self, data: st.DataObject, timed_out: bool) -> None:
        waiter = data.draw(st.sampled_from([*self.senders, *self.readers, *self.pollers]))
        is_poller = waiter in self.pollers
        for calls in (self.senders, self.readers, self.pollers):
            calls.pop(waiter, None)
        if not timed_out:
            self.desk.cancel(waiter)
        else:
            self.desk.time_over(waiter)
            assert (self.desk.ended[waiter].value is False) == is_poller

    @rule(of=st.integers(0, 2))
    def death(self, of: int) -> None:
        gone, self.processes[of] = self.processes[of], self.born()
        for waiter in [waiter for waiter in self.lent if waiter.party.process == gone]:
            number = self.lent.pop(waiter)
            if not self.no_reader:
                bisect.insort(self.inside, number)
        for calls in (self.senders, self.readers, self.pollers):
            for waiter in [waiter for waiter in calls if waiter.party.process == gone]:
                del calls[waiter]
        self.desk.die(gone)

    @precondition(lambda self: not self.no_sender)
    @rule()
    def nobody_sends(self) -> None:
        self.no_sender = True
        close(self.desk, 0)
        assert not self.senders

    @precondition(lambda self: not self.no_reader)
    @rule()
    def nobody_reads(self) -> None:
        self.no_reader = True
        self.inside.clear()
        close(self.desk, 1)
        assert not self.readers and not self.pollers and not self.senders

    @invariant()
    def nobody_waits_for_what_is_there(self) -> None:
        at_end = self.no_sender and not self.inside and not self.lent
        assert not (self.readers and (self.inside or at_end))
        assert not (self.pollers and (self.inside or at_end))
        assert not (self.senders and not self.desk.wires[1].arrived)
        assert set(self.desk.waiting) == {*self.senders, *self.readers, *self.pollers}

    @invariant()
    def nothing_is_watched_that_nobody_waits_for(self) -> None:
        assert self.desk.wires[0].watched == (False, bool(self.senders))
        assert self.desk.wires[1].watched[1] is False
        assert not self.desk.wires[1].watched[0] or self.readers or self.pollers

    @invariant()
    def each_message_is_in_one_place(self) -> None:
        if not self.no_reader:
            assert sorted([*self.inside, *self.lent.values(), *self.taken]) == list(range(len(self.parcels)))


AnyOrder.TestCase.settings = settings(deadline=None, max_examples=100, stateful_step_count=40)
TestAnyOrder = AnyOrder.TestCase


def test_a_wire_for_whose_message_this_host_has_no_room_fails_that_call_only(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = PipeDesk()
    sent, waits = send(desk, "large"), recv(desk, end=0)

    def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(desk.wires[1], "receive", fail)
        patched.setattr(desk.wires[0], "send", fail)
        received, unsent = recv(desk), send(desk, "lost")
    for waiter in (received, unsent):
        with pytest.raises(OSError, match="too many open files"):
            desk.end(waiter)
    assert desk.end(sent) is None and waits in desk.waiting
    assert desk.end(recv(desk)) == "large"


def test_those_that_poll_hear_of_a_message_before_the_one_that_takes_it() -> None:
    desk = PipeDesk()
    state = desk.states[0]
    polls = [Waiter(C), Waiter(C)]
    for waiter in polls:
        assert state.poll(waiter, 1) == []
    reads = Waiter(B)
    assert state.recv(reads, 1) == []
    desk.wires[1].arrived.extend([Parcel("one"), Parcel("two")])
    assert [outcome.waiter for outcome in state.ready(1)] == [*polls, reads]
    late = Waiter(C)
    assert [outcome.waiter for outcome in state.poll(late, 1)] == [late]
    assert state.give_up(late, timed_out=True) == [], "it is not asked twice"


def test_an_end_that_is_closed_forgets_its_calls_and_what_it_had_not_lent() -> None:
    desk = PipeDesk()
    state = desk.states[0]
    waits, polls = recv(desk), desk.call(state, "poll", C, 1)
    full = send(desk, "too much", end=1, size_bytes=ROOM + 1)
    close(desk, 1)
    for waiter in (waits, polls, full):
        with pytest.raises(OSError, match="handle is closed"):
            desk.end(waiter)
        assert state.give_up(waiter, timed_out=True) == [], "nothing is left of it"


def test_a_process_that_is_gone_is_told_nothing_of_what_it_polled_for() -> None:
    desk = PipeDesk()
    desk.call(desk.states[0], "poll", C, 1)
    waits = recv(desk)
    desk.die("c")
    send(desk, "one")
    assert desk.end(waits) == "one"
