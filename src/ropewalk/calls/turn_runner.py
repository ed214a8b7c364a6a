"""Runs the turns of calls at their objects, and sends the answers.

begin ──▶ lane: its turn? ──no──▶ waits there; `continue_lane` begins it
            │ yes
            ▼
          run, in this thread or another ──▶ the turn ends ──▶ finish: the answer is sent

Answers to calls that arrived together are sent together.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

from ropewalk.calls.incoming import HeldTurn, Incoming, OnceIncoming, Reply, Served, Turn
from ropewalk.calls.messages import OnceCall, Raised, StreamItem
from ropewalk.calls.once import Done
from ropewalk.calls.payloads import PackedValue
from ropewalk.calls.threads import Threads
from ropewalk.calls.turns import CallLane
from ropewalk.errors import CallCycle, FrameError, LinkClosed
from ropewalk.transport.failures import failure_of
from ropewalk.transport.frames import Part
from ropewalk.transport.link import Link, Received
from ropewalk.transport.loop import Loop
from ropewalk.transport.loop_with_deputies import DEPUTY_S

_TURN_S = 0.001
"""Maximum time in seconds for which waiting calls are begun in one turn of the loop."""
_MOST_HELD = 16
"""Maximum number of small answers sent together: the caller can go on with these while the next ones are made."""


class TurnRunner:
    """Runs turns, on the loop or in threads.

    Args:
        loop: the loop of the links.
        again: called on the loop with calls that arrived again while their first arrival ran, now that it is over.
    """

    def __init__(self, loop: Loop, again: Callable[[Sequence[tuple[Link, OnceCall, Received]]], None]) -> None:
        self._loop, self._again = loop, again
        self.threads = Threads("ropewalk-call")
        self.unanswered: dict[Link, dict[int, Incoming]] = {}
        """Calls that are not answered yet, which may be cancelled."""

    def begin(self, turn: Turn) -> None:
        """Run a turn now, or let it wait in its lane."""
        try:
            with turn.served.lock:
                begun = turn.lane.arrive(turn)
        except CallCycle as error:
            for call in turn.calls:
                self.finish(call, call.failed(error))
            if turn.when_over:
                self._loop.call_soon(turn.when_over)
            return
        if begun:
            self._start(turn)

    def continue_lane(self, served: Served, lane: CallLane[Turn]) -> None:
        """Begin waiting turns of a lane; on the loop, for at most `_TURN_S`."""
        due = time.monotonic() + _TURN_S
        while True:
            with served.lock:
                turn = lane.begin_next()
            if turn is None or not self._start(turn):
                return
            if time.monotonic() > due:
                self._loop.call_soon(lambda: self.continue_lane(served, lane))
                return

    def _start(self, turn: Turn) -> bool:
        """Run a turn; False if another thread took over the loop meanwhile and continues with the lane."""
        if isinstance(turn, HeldTurn):
            turn.give()
            return True
        if turn.in_thread:
            try:
                self.threads.run(lambda: self._run(turn))
            except RuntimeError as error:  # no thread can be started: a turn that never ends would hold up all others
                self._fail(turn, error)
            return True
        entered = self._loop.enter()
        self._run(turn)
        if self._loop.leave(entered):
            return True
        for call in turn.calls:
            if call.way.facts.brief:
                call.way.lasts = True
            call.link.flush()  # the turn of the loop in which its answer was held is over
        return False

    def _fail(self, turn: Turn, error: RuntimeError) -> None:
        """End a turn that could not run."""
        error.add_note(f"{turn.label} needs a thread in its process, and none could be started")
        for call in turn.calls:
            self.finish(call, call.failed(error))
        with turn.served.lock:
            more = turn.lane.finish(turn)
        if more:
            self._loop.call_soon(lambda: self.continue_lane(turn.served, turn.lane))
        if turn.when_over:
            self._loop.call_soon(turn.when_over)

    def run_alone(self, call: Incoming) -> None:
        """Run a plain call and send its reply: the fast path of `_run`."""
        served = call.served
        since = call.since = time.monotonic()
        reply = call.answer()
        early = reply[2] is not None and _must_go_first(reply)
        if early:
            self.finish(*reply)
        with served.lock:
            served.num_done += 1
            served.busy_s += time.monotonic() - since
            more = call.lane.finish(call)
        if more:
            self._loop.call_soon(lambda: self.continue_lane(served, call.lane))
        # The turn ends before its answer is sent: a caller that has the answer may call again at once.
        if not early:
            self.finish(*reply)

    def _run(self, turn: Turn) -> None:
        """Run a turn and send its replies."""
        served, lane = turn.served, turn.lane
        turn.since = time.monotonic()
        replies = turn.run()
        early = any(map(_must_go_first, replies)) and not any(call.once for call, _, _ in replies)
        if early:
            self._finish_all(replies)
        with served.lock:
            num_ended = turn.num_ended
            served.num_done += num_ended
            served.busy_s += num_ended * (time.monotonic() - turn.since)
            for call, answer, packed in replies:
                if call.once:  # during its turn, so that the next saved state contains both the effect and the answer
                    self.settle(call, call.done(answer, packed))  # type: ignore[arg-type, attr-defined]
            more = lane.finish(turn)
        if more:
            self._loop.call_soon(lambda: self.continue_lane(served, lane))
        # The turn ends before its answer is sent: a caller that has the answer may call again at once.
        if not early:
            self._finish_all(replies)
        if turn.when_over:
            self._loop.call_soon(turn.when_over)
        if turn.in_thread and isinstance(turn, Incoming) and time.monotonic() - turn.since < DEPUTY_S:
            turn.way.lasts = False

    def reply(self, link: Link, answer: Any, parts: Sequence[Part] = ()) -> None:
        """Send an answer, together with others if more of the messages that arrived together are at hand.

        Raises:
            LinkClosed: the caller is gone.
        """
        if not (link.reader.may_hold_more and self._loop.is_reading(link)):
            link.send(answer, parts, copies=True)
        elif link.hold(answer, parts, copies=True) >= _MOST_HELD:
            link.flush()

    def _finish_all(self, replies: Sequence[Reply]) -> None:
        for reply in replies:
            self.finish(*reply)

    def finish(self, call: Incoming, answer: Any, packed: PackedValue | None = None) -> None:
        """Send the outcome of a call, unless it is no longer wanted."""
        link = call.link
        if call.once:
            with call.served.lock:
                self.settle(call, None)  # type: ignore[arg-type]  # unless it was before: it has ended without a turn
        if type(answer) is not StreamItem and (calls := self.unanswered.get(link)):
            calls.pop(call.number, None)
        try:
            if answer is None or call.cancelled:
                return
            if packed is None:
                parts = ()
            elif packed.fds:
                link.send(answer, packed.parts, packed.fds)
                return
            else:
                parts = packed.parts
            self.reply(link, answer, parts)
        except LinkClosed:
            pass  # the loop notices by itself
        except FrameError as error:
            send(link, Raised(call.number, failure_of(error)))
        finally:
            if packed is not None and packed.fds:
                packed.close()

    def settle(self, call: OnceIncoming, done: Done | None) -> None:
        """Note the outcome of a call that runs once; with the object's lock held."""
        if call.is_settled:
            return
        call.is_settled = True
        served, name = call.served, call.once
        assert name
        served.once_running.pop(name, None)
        if done:
            served.once.done(name, done)
        else:
            served.once.undone(name)
        if call.repeats:  # these are answered now, or begun again
            repeats, call.repeats = call.repeats, []
            self._loop.call_soon(lambda: self._again(repeats))


def _must_go_first(reply: Reply) -> bool:
    """Whether a reply has parts in memory of the object, which the next call may change."""
    packed = reply[2]
    return packed is not None and len(packed.parts) > 1


def send(link: Link, message: Any) -> None:
    """Send a message; the loop notices by itself if the link has ended."""
    with contextlib.suppress(LinkClosed):
        link.send(message)


__all__ = ["TurnRunner", "send"]
