"""A node host: a process (or, in threads mode, the launcher's own) in which nodes run.

    launcher ──StartUnit──▶ host: a thread for each node: construct ─▶ serve ─▶ run ─▶ end
                              │
                              └ one loop: calls from other hosts, the launcher's messages, timed work

The loop handles requests that may come at any moment (stop, status, calls); the nodes' own work runs in threads of
their own, the first node's in the main thread.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from ropewalk.calls.caller import LAST_WORDS_S, Caller
from ropewalk.calls.incoming import Served, Turn
from ropewalk.calls.markers import MethodFacts
from ropewalk.calls.messages import CALLS
from ropewalk.calls.once import OnceTable
from ropewalk.calls.payloads import Handover
from ropewalk.calls.server import CallServer
from ropewalk.calls.threads import Threads
from ropewalk.errors import CallCycle, ProgramStopped, StartFailed
from ropewalk.processes.gpus import VISIBLE
from ropewalk.processes.interrupts import SAME_REQUEST_S
from ropewalk.processes.messages import Retired
from ropewalk.processes.notifier import Notifier
from ropewalk.program import node_context, stacks
from ropewalk.program.directory import DirectoryView
from ropewalk.program.held_up import HeldUp
from ropewalk.program.kept_state import KeptState, has_state
from ropewalk.program.messages import (
    AskStatus,
    AskWaits,
    CallsHeldUp,
    CallStatus,
    EndCall,
    HostStatus,
    Locate,
    NodeCalls,
    NodeReady,
    Note,
    OfferRendezvous,
    Placed,
    RendezvousAt,
    Sizes,
    StartUnit,
    StateAnswer,
    StopProgram,
    StopUnit,
    UnitEnded,
    UnitName,
    UnitUp,
    WaitsAre,
    WaitsForStop,
)
from ropewalk.program.node import Node
from ropewalk.program.node_context import NodeContext
from ropewalk.program.running_unit import RunningNode, RunningUnit
from ropewalk.program.state_stores import FolderStore, LauncherStore, StateStore
from ropewalk.transport.address import HostAddress, parse_address
from ropewalk.transport.failures import failure_of
from ropewalk.transport.frames import Part
from ropewalk.transport.host_listener import HostListener
from ropewalk.transport.link import Link
from ropewalk.transport.loop import Loop
from ropewalk.transport.loop_with_deputies import LoopWithDeputies
from ropewalk.transport.passport import Passport
from ropewalk.transport.ports import held_port
from ropewalk.transport.tokens import TokenList

logger = logging.getLogger(__name__)

_PACKAGE = "ropewalk.program"
"""The package whose frames are left out around those of a node."""
_LOOK_S = 0.1
_CALLS_PART, _CALLS_S = 0.5, 1.0
"""The part of its grace, and the maximum in seconds, for which a node that is asked to stop may go on calling others.
"""
_NOTICE_PART = 0.5
"""The part of its grace in which SIGTERM is taken for what an engine sends to all processes of a host that it takes
away: the launcher, which asked the node to stop for that reason, sends its own at the end of the grace."""
_DRAIN_S = 1.0
"""Maximum seconds for which waiting calls are still answered when a service is asked to stop."""
_SEE_OFF_S = 0.2
"""Seconds for which callers of a restarted service are told that it is no longer here."""
_CALLBACKS_S = 5.0
"""Maximum seconds for which the stop callbacks of a node that has ended are waited for."""
_OUTLIVES_S = 10.0
"""Seconds after which a method is reported that goes on although its answer is no longer wanted."""
_MOST_WISHES = 100
_LOOPBACK = "127.0.0.1"


class Say(Protocol):
    """Sends the launcher a message; from any thread."""

    def __call__(self, message: msgspec.Struct, parts: Sequence[Part] = (), /) -> None: ...


class NodeHost:
    """The loop, the links and the nodes of one process.

    Args:
        folder: where its socket is made.
        socket_name: of at most 24 bytes.
        run_id, host_id: its identification towards other hosts.
        key: makes the tokens of processes that may call it; see `transport/tokens.py`.
        say: sends the launcher a message; from any thread.
        handover: passes objects in calls without copying them, if all nodes of the program are here.
        passport: the addresses and credentials of this process, in a run of several hosts.
        forks: whether this process belongs to the nodes, so that it may fork children that write their states.
    """

    def __init__(
        self,
        folder: str,
        socket_name: str,
        run_id: str,
        host_id: str,
        key: str,
        say: Say,
        handover: Handover | None = None,
        passport: Passport | None = None,
        *,
        forks: bool = False,
    ) -> None:
        self.say = say
        self._forks = forks
        self._handover = handover
        self.loop: Loop = LoopWithDeputies()
        self.server: CallServer = CallServer(self.loop)
        self.run_id: str = run_id
        self._host_id = host_id
        self._passport = passport
        self.leave: Callable[[], object] = lambda: None
        """Ends a process in which a unit has failed but whose first node does not end; does nothing in threads mode."""
        self._launcher_store = LauncherStore(say)
        self._store: StateStore = self._launcher_store
        self._threads = Threads("ropewalk-node")
        self._units: dict[UnitName, RunningUnit] = {}
        self._early_wishes: dict[UnitName, StopUnit] = {}
        self._held_up = HeldUp()
        self._given_up: dict[int, float] = {}
        """Running calls whose answers are no longer wanted, by key, with the time at which to report them."""
        self._rendezvous: dict[tuple[str, int], RendezvousAt] = {}
        self._lock = threading.Lock()  # guards units and requests that arrived before their units
        self._news = Notifier()
        self._members = TokenList(key)
        self._listener = HostListener(
            self.loop,
            os.path.join(folder, socket_name),
            passport,
            run_id,
            self._members,
            CALLS,
            lambda _id, link: self._attend(link),
        )
        self.loop.call_soon(self._listener.open)
        self.loop.call_soon(self._look)

    # For nodes, from any thread

    def run_aside(self, call: Callable[[], object]) -> None:
        """Run a call in another thread."""
        self._threads.run(call)

    def stop_program(self, reason: str) -> None:
        """Ask the launcher to stop the program."""
        self.say(StopProgram(reason))

    def serve(self, context: NodeContext, obj: object, methods: Mapping[str, MethodFacts]) -> None:
        """See `NodeContext.serve`."""
        running, once = self._running(context), OnceTable()
        if running is None:
            raise ProgramStopped(f"{context.label} has ended: it cannot serve any more")
        if has_state(obj):
            running.state = KeptState(obj, context, self._store, self._note, once, forks=self._forks)
            running.state.restore()
        running.served = self.server.serve(obj, methods, context.label, once)
        running.served.owner = context  # type: ignore[attr-defined]
        self._tell_ready(running)

    def checkpoint_here(self, context: NodeContext) -> bool:
        """See `NodeContext.checkpoint_here`."""
        running = self._running(context)
        if running is None:
            return False  # it has ended
        state, served = running.state, running.served
        if running.node.methods() is None:
            raise RuntimeError(
                f"{context.label} is a {running.node.kind}, and only services have a state that is saved"
            )
        if state is None or served is None:
            if served and not served.closed:
                raise RuntimeError(
                    f"{context.label} has no state to be saved: its class needs state_dict() and load_state_dict()"
                )
            return False  # not ready yet, or being ended, after which it is saved
        if not state.is_due_here(time.monotonic()):
            return False
        finish = state.begin(self.server.turn(served))
        if finish:
            self.run_aside(finish)
        return finish is not None

    def waits_for_stop(self, context: NodeContext, *, limited: bool) -> bool:
        """Note that a node's own thread is going to wait for the stop; return whether it so has no end of its own.

        Args:
            context: of the node.
            limited: whether it waits with a timeout, which a worker may do as a pause.
        """
        unit, running = self._units.get(context.unit), self._running(context)
        if unit is None or running is None:  # it has ended without this node
            return False
        if not running.node.finite or (limited and running.node.methods() is None):
            return False
        running.waits_for_stop = True
        if all(each.waits_for_stop or each.ended.is_set() for each in unit.nodes if each.node.finite):
            self.say(WaitsForStop(unit.name))
        self._settle(unit)
        return True

    @property
    def ip(self) -> str:
        """The address at which other hosts reach this one; empty if there are none, or they do not reach it."""
        return self._passport.ip if self._passport else ""

    def rendezvous(self, unit: UnitName) -> RendezvousAt:
        """Wait for all ranks of a unit; return the rendezvous address, which the first rank chooses.

        Raises:
            ProgramStopped: the unit is being ended, perhaps because another rank has failed.
            StartFailed: the ranks are on several hosts, and these have no addresses.
        """
        here = self._passport.host if self._passport else ""
        with contextlib.ExitStack() as until_met:
            if unit.replica == 0:
                ip = self.ip or _LOOPBACK
                port = until_met.enter_context(held_port(ip))
                self.say(OfferRendezvous(RendezvousAt(unit.unit, unit.generation, here, ip, port)))
            running, met = self._units[unit], (unit.unit, unit.generation)
            self._news.wait_until(lambda: met in self._rendezvous or running.stopping)
            if met not in self._rendezvous:
                raise ProgramStopped(f"{unit.unit} is ended before its ranks have met")
            at = self._rendezvous[met]
        if at.address == _LOOPBACK and at.host != here:
            raise StartFailed(
                f"the ranks of {unit.unit} are on several hosts ({at.host} and {here}) and cannot meet: with this "
                "engine hosts have no addresses for each other; all goes through the engine's own connection, which "
                "torch.distributed cannot use. Run all ranks on one host (hosts=1, or resources that fit there), or "
                "use an engine whose hosts reach each other, such as slurm"
            )
        return at

    # Messages of the launcher; on the loop, or before it runs

    def hear(self, message: Any, parts: list[Part] | None = None) -> None:
        """Carry out a message of the launcher."""
        match message:
            case Placed() | Sizes():
                for unit in list(self._units.values()):
                    self._leave_gone(unit, unit.view.hear(message))
            case StopUnit():
                self._told_to_stop(message)
            case AskWaits():
                lanes = self._held_up.timed(self.server.waits(), time.monotonic())
                self.say(WaitsAre(message.number, message.name, lanes))
            case EndCall():
                error = CallCycle(message.words, chain=tuple(message.circle))
                self.server.fail(message.target, message.key, error)
            case Retired():
                for process in message.processes:
                    self._members.retire(process.id, process.fingerprint)
                self.server.hang_up_on({process.id for process in message.processes if process.is_cut})
            case AskStatus():
                self.say(HostStatus(message.number, self._status()))
            case StateAnswer():
                self._launcher_store.hear(message, parts or [])
            case RendezvousAt():
                self._rendezvous[message.unit, message.generation] = message
                self._news.ring()
            case _:
                raise RuntimeError(f"a host cannot do anything with {message!r}")

    def prepare(self, start: StartUnit, nodes: list[Node[Any]]) -> RunningUnit:
        """Take over the nodes of a unit, and report that it is up; `run_unit` runs them."""
        if start.checkpoints:
            self._store = FolderStore(Path(start.checkpoints))
        view = DirectoryView(lambda name: self.say(Locate(name)), self.loop.hand_over)
        stream = f"{start.name.unit}.{start.name.replica}#{start.name.generation}"
        caller = Caller(self.loop, view, self.run_id, self._host_id, self._handover, self._passport, stream)
        unit = RunningUnit(start.name, view, caller)
        unit.nodes = [
            RunningNode(node, NodeContext(self, unit.caller, start.name, facts, start.program))
            for node, facts in zip(nodes, start.nodes, strict=True)
        ]
        with self._lock:
            self._units[start.name] = unit
            wish = self._early_wishes.pop(start.name, None)
        if wish:
            self._told_to_stop(wish)
        self.say(UnitUp(start.name, str(self._listener.address), os.environ.get(VISIBLE, "")))
        return unit

    def run_unit(self, unit: RunningUnit) -> bool:
        """Run the nodes of a unit, the first one in this thread; return whether all of them ended well."""
        for running in unit.nodes[1:]:
            threading.Thread(
                target=self._run_node, args=(unit, running), name=running.context.label, daemon=True
            ).start()
        self._run_node(unit, unit.nodes[0])
        unit.over.wait()
        self._conclude(unit)
        return unit.failed_first is None

    def see_callers_off(self, unit: RunningUnit) -> None:
        """Answer for a moment that nothing is served here, so that callers lose no calls with the closing link.

        Calls that arrive now do not run, and callers send them again to the service's next location.
        """
        if unit.has_callers:
            self.server.wait_for_end_of_links(_SEE_OFF_S)

    def _conclude(self, unit: RunningUnit) -> None:
        """End the services, and report to the launcher, after all awaited nodes have ended; once."""
        with unit.lock:
            if unit.concluded:
                return
            unit.concluded = True
        for running in unit.nodes:
            if not running.context.wait_for_callbacks(_CALLBACKS_S):
                self.say(Note(f"{running.context.label}: a stop callback takes over {_CALLBACKS_S:g} s; it is left"))
            self._end_service(unit, running)
        self._close_calls(unit, f"{unit.nodes[0].context.label} has ended")
        self._units.pop(unit.name, None)
        first = unit.failed_first
        self.say(UnitEnded(unit.name, first.context.name if first else "", first.failure if first else None))

    def _told_to_stop(self, wish: StopUnit) -> None:
        with self._lock:
            unit = self._units.get(wish.name)
            if unit is None:
                self._early_wishes[wish.name] = wish
                if len(self._early_wishes) > _MOST_WISHES:  # these are for units that had ended
                    del self._early_wishes[next(iter(self._early_wishes))]
                return
        unit.has_callers = wish.program_stays
        self.run_aside(lambda: self._stop_unit(unit, wish.why, wish.grace_s))

    def launcher_lost(self, why: str) -> None:
        """Ask the nodes to end, because the launcher is gone; the agent ends the process in a moment."""
        self._launcher_store.end(why)
        for unit in list(self._units.values()):
            unit.view.end(why)
            self.run_aside(lambda unit=unit: self._stop_unit(unit, why, 0.0))

    def forget(self) -> None:
        """In a forked child: close the copies of links without sending anything."""
        for unit in self._units.values():
            unit.caller.forget()
        self.loop.forget()

    def close(self) -> None:
        """End calls and the loop; may be called twice."""
        for unit in list(self._units.values()):
            self._close_calls(unit, "this process ends")
        self.server.close()
        if not self.loop.ended.is_set():
            closed = threading.Event()
            self.loop.call_soon(lambda: (self._listener.close(), closed.set()))
            closed.wait(_DRAIN_S)
        self.loop.stop()
        self.loop.ended.wait(_DRAIN_S)
        self._threads.close()

    # The life cycle of a node

    def _run_node(self, unit: RunningUnit, running: RunningNode) -> None:
        context = running.context
        node_context.enter(context)
        try:
            if running.node.methods() is None:
                self._tell_ready(running)
            running.node.run(context)
        except ProgramStopped as error:
            if not context.stopping and not unit.stopping:
                self._failed(unit, running, error)
        except BaseException as error:
            if not (unit.stopping and _is_of_the_end(error)):
                self._failed(unit, running, error)
        finally:
            node_context.leave(context)
            running.ended.set()
            self._settle(unit)

    def _failed(self, unit: RunningUnit, running: RunningNode, error: BaseException) -> None:
        if isinstance(error, SystemExit) and error.code in (None, 0):
            return
        running.failure = failure_of(error, _PACKAGE)
        if isinstance(error, SystemExit) and isinstance(error.code, int):
            running.exit_code = error.code & 0xFF
        with unit.lock:
            unit.failed_first = unit.failed_first or running
        if unit.failed_first is not running:  # the launcher learns of the first failure, and prints it
            sys.stderr.write(running.failure.traceback)

    def _settle(self, unit: RunningUnit) -> None:
        """A node has ended: the unit is over if it failed, or if it was the last one that has an end of its own."""
        finite = [running for running in unit.nodes if running.node.finite and not running.waits_for_stop]
        awaited = finite if finite and not unit.stopping else unit.nodes
        if unit.failed_first or all(running.ended.is_set() for running in awaited):
            for running in unit.nodes:
                running.context.ask_to_stop()
            unit.over.set()
            if unit.failed_first and not unit.nodes[0].ended.is_set():
                self.run_aside(lambda: self._leave(unit))

    def _leave(self, unit: RunningUnit) -> None:
        """End the process when another node than the first failed: the first may go on, or wait for ever for it."""
        first = unit.nodes[0]
        if first.ended.wait(_CALLS_S):
            return
        self._close_calls(unit, f"{first.context.label} ends with its unit, in which a node has failed")
        if not first.ended.wait(_DRAIN_S):
            self._conclude(unit)
            self.leave()

    def _tell_ready(self, running: RunningNode) -> None:
        target = running.served.target if running.served else 0
        self.say(NodeReady(running.context.unit, running.context.name, target))

    def _stop_unit(self, unit: RunningUnit, why: str, grace_s: float) -> None:
        """Ask the nodes of a unit to end; in a thread of its own."""
        unit.why_stopping = why
        unit.noticed_until = time.monotonic() + min(grace_s * _NOTICE_PART, SAME_REQUEST_S)
        unit.stopping = True
        self._news.ring()  # for ranks that wait for the first one
        for running in unit.nodes:
            running.context.ask_to_stop()
        if unit.over.wait(min(grace_s * _CALLS_PART, _CALLS_S)):
            return
        # It may be waiting for an answer that will never come, of a node that is being stopped as well.
        self._close_calls(unit, why)

    def _close_calls(self, unit: RunningUnit, why: str) -> None:
        unit.view.end(why)
        unit.caller.close(why)

    def _end_service(self, unit: RunningUnit, running: RunningNode) -> None:
        """Refuse new calls, answer those that have arrived, save the state."""
        served = running.served
        if served is None:
            return
        label = running.context.label
        why = f": {unit.why_stopping}" if unit.why_stopping else ""
        self.server.refuse(served, f"{label} has failed" if running.failure else f"{label} is being stopped{why}")
        idle = self.server.wait_idle(served, _DRAIN_S)
        state, running.state = running.state, None  # a due save is done here, and not by the loop
        if state and not running.failure and (running.ended.is_set() or state.takes_no_turn or not state.runs):
            if idle or state.takes_no_turn:
                state.save_last()
            else:
                self._note(
                    f"the state of {label} was not saved again at its end: a call still runs {_DRAIN_S:g} s after it "
                    "was asked to stop, and may be in the middle of a change"
                )
        self.server.withdraw(served)

    # Periodic work

    def _look(self) -> None:
        """On the loop: save due states; look for methods whose answers are not wanted, and for calls that wait."""
        now = time.monotonic()
        given_up: dict[int, float] = {}
        for unit in list(self._units.values()):
            for running in unit.nodes:
                for turn in running.served.running if running.served else ():
                    if turn.given_up:
                        given_up[turn.key] = self._outlived(turn, now)
                state, served = running.state, running.served
                if state and served and state.is_due(served.num_done, now):
                    self.run_aside(lambda state=state, served=served: self._save(state, served))
        self._given_up = given_up
        if self._units and self._held_up.look(self.server.waits(), now):
            self.say(CallsHeldUp(next(iter(self._units))))  # any of them: it stands for the process
        self.loop.call_later(_LOOK_S, self._look)

    def _save(self, state: KeptState, served: Served) -> None:
        """Save the state if it is due; in a thread that can wait."""
        finish = state.begin(contextlib.nullcontext(True) if state.takes_no_turn else self.server.turn(served))
        if finish:
            finish()

    def _note(self, text: str) -> None:
        """Report something to the user, here and at the launcher."""
        logger.warning(text)
        self.say(Note(text))

    def _outlived(self, turn: Turn, now: float) -> float:
        """A call goes on though its answer is not wanted; return the time at which to report it."""
        due = self._given_up.get(turn.key, now + _OUTLIVES_S)
        if now < due:
            return due
        text = (
            f"{turn.label}() still runs {_OUTLIVES_S:g} s after {turn.given_up}, and keeps its turn from others; a "
            "method that waits should wait with rw.wait_for(condition, predicate), which ends then"
        )
        self._note(text)
        return math.inf

    # Smaller steps

    def _leave_gone(self, unit: RunningUnit, address: str) -> None:
        """Drop connections of a unit to a process that is gone: a lost host never closes its links."""
        if not address:
            return
        gone = parse_address(address)
        if isinstance(gone, HostAddress) and self._passport and gone.host != self._passport.host:
            self.loop.call_later(LAST_WORDS_S, lambda: unit.caller.lose(address, "its process has ended"))

    def _attend(self, link: Link) -> None:
        if self._handover:
            self._handover.join(link)
        self.server.attend(link)

    def _running(self, context: NodeContext) -> RunningNode | None:
        """What runs in a context; None once its unit has ended. Other units come and go meanwhile."""
        unit = self._units.get(context.unit)
        return next((running for running in unit.nodes if running.context is context), None) if unit else None

    def _status(self) -> list[NodeCalls]:
        now = time.monotonic()
        of_threads, of_turns = stacks.places()
        return [
            NodeCalls(
                unit.name,
                running.context.name,
                served.num_done if served else 0,
                served.num_waiting if served else 0,
                [
                    CallStatus(call.label, now - call.since if call.since else 0.0, of_turns.get(id(call), ""))
                    for call in served.running
                ]
                if served
                else [],
                "" if running.ended.is_set() else of_threads.get(running.context.thread, ""),
                running.context.stopping,
                served.busy_s if served else 0.0,
                running.context.calls_to,
            )
            for unit in list(self._units.values())
            for running in unit.nodes
            for served in [running.served]
        ]


def _is_of_the_end(error: BaseException) -> bool:
    """Whether a node that was asked to stop raised this because its program is being stopped."""
    return isinstance(error, ProgramStopped | KeyboardInterrupt | SystemExit)
