"""How this process takes part in its run, or, in a launcher, in each of its runs: links to depots and managers.

Queue ─┐
Lock  ─┼─▶ SharingMember (one for each run) ──▶ Caller ──▶ one link to each depot and manager
proxy ─┘        │ one loop, in a thread, from the first shared object on
                └ each second: a ping to those on other hosts, which else might fall silent unseen
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import multiprocessing
import os
import platform
import threading
import time
from collections.abc import Callable, Generator
from multiprocessing import util
from typing import TYPE_CHECKING, Any

from ropewalk.calls.caller import Caller
from ropewalk.calls.directory import ReplicaLocation
from ropewalk.calls.messages import Call
from ropewalk.calls.payloads import PackedValue, pack_arguments
from ropewalk.calls.pending import Dropped, Lost, NotServed
from ropewalk.calls.rpc_connection import RpcConnection
from ropewalk.errors import PeerLost, PoolClosed, TransportError
from ropewalk.processes import bootstrap
from ropewalk.processes.agent_record import LAUNCHER
from ropewalk.processes.interrupts import interrupts_deferred
from ropewalk.processes.questions import tokens_through_agent
from ropewalk.processes.session import Session
from ropewalk.processes.shared_sessions import default_session, leased, session_of_run
from ropewalk.sharing.depot import DEPOT_TARGET
from ropewalk.transport.loop import Loop

if TYPE_CHECKING:
    from ropewalk.transport.passport import Passport

#: The process that is a depot.
DEPOT = "ropewalk.sharing.depot_process:main"
#: A depot on another host that has not even answered a ping for so long is gone.
SILENT_S = 5.0
#: Nobody dials it again for so long.
_SHUN_S = 10.0
#: So many depots are tried, one after the other, each of which ends before it answers.
_ATTEMPTS = 5
#: The loop is waited for so long at the end; it never lasts.
_JOIN_S = 2.0


class SharingMember:
    """This process, as the depots and managers of one run know it.

    Args:
        run_id: the run.
        process_id: its name in the run.
        tokens: finds the token for the service at an address.
        passport: where it is, in a run of several hosts.
        session: of the run, if this is its launcher.
    """

    def __init__(
        self,
        run_id: str,
        process_id: str,
        tokens: Callable[[str], str],
        passport: Passport | None,
        session: Session | None,
    ) -> None:
        self.identity = run_id, process_id, tokens, passport
        """By which a forked child makes its own."""
        self.run_id = run_id
        self.session = session
        self.loop = Loop()
        self.caller = Caller(self.loop, ProxyDirectory(), run_id, process_id, passport=passport)
        self._find_token = tokens
        self._tokens: dict[str, str] = {}
        """By address; they are good for as long as the service is there."""
        self._depot = ""
        self._finding = threading.Lock()
        """Held while a depot is looked for, which takes seconds if its host is silent."""
        self._lock = threading.Lock()
        """Held for moments, by the loop as well."""
        self._introduced: dict[RpcConnection, tuple[int, float]] = {}
        self._silent: dict[str, tuple[float, str]] = {}
        self._num_users = 0
        self.loop.call_soon(self._look)
        self.loop.start("ropewalk-sharing")

    def place(self, address: str, target: int) -> ReplicaLocation:
        """Where an object is, with what opens the door, if that was found before (`converse`)."""
        return ReplicaLocation("up", address, target, self._tokens.get(address, ""))

    def converse(self, address: str, wanted: str = "depot") -> RpcConnection:
        """The link to a depot; dials it if there is none yet.

        Args:
            address: of the depot.
            wanted: what is called there, for people.

        Raises:
            PeerLost: nobody answers there.
        """
        now = time.monotonic()
        until, why = self._silent.get(address, (0.0, ""))
        if now < until:
            raise PeerLost(f"the {wanted} is gone: {_silence(address, why)}", peer=address)
        try:
            if address not in self._tokens and self.caller.known(address) is None:
                self._tokens[address] = self._find_token(address)
            conversation = self.caller.converse(f"the depot at {address}", self.place(address, DEPOT_TARGET))
        except TransportError as error:
            if time.monotonic() - now > 1.0:
                self._shun(address, str(error))
            raise PeerLost(f"the {wanted} is gone: {_silence(address, str(error))}", peer=address) from error
        mine = (0, time.monotonic())
        if conversation not in self._introduced and self._introduced.setdefault(conversation, mine) is mine:
            conversation.share_page()
            self.tell(conversation, "introduce", who_we_are())
            for call in on_dialled:
                call(self, address, conversation)
        return conversation

    def ask(self, address: str, method: str, *args: object) -> Any:
        """Call a depot itself.

        Raises:
            PeerLost: it is gone.
            Exception: what the depot raised.
        """
        packed = pack_arguments(None, args, {}, keep=False)
        message = Call(0, DEPOT_TARGET, method, False, None, (), packed.shared, 0)
        try:
            return self.converse(address).exchange(message, packed)
        except (Lost, NotServed) as error:
            if isinstance(error, Lost):
                self.caller.lose(address, str(error))  # or the next one would try the same link again
            raise PeerLost(f"the depot at {shown(address)} is gone: {error}", peer=address) from None

    def tell(self, conversation: RpcConnection, method: str, *args: object) -> None:
        """Call a depot itself without waiting, also not for room; what cannot be sent any more is dropped."""
        packed = pack_arguments(None, args, {}, keep=True) if args else PackedValue(())
        message = Call(0, DEPOT_TARGET, method, False, None, (), packed.shared, 0)
        with contextlib.suppress(Lost):
            conversation.begin(message, packed, Dropped(conversation.where), wait_for_room=False)
            conversation.flush()

    def depot(self) -> str:
        """The address of the depot for objects that are made here: that of this host.

        Raises:
            StartFailed: it could not be started.
            PeerLost: its agent is gone, or it runs and does not answer.
        """
        silence: PeerLost | None = None
        with self._finding:
            for _ in range(_ATTEMPTS):
                if self._depot and not (silence := self._silence_of(self._depot)):
                    return self._depot
                # A depot that nobody needs ends, perhaps just now, and the launcher may not have heard of that yet.
                last, self._depot = self._depot, self._find_depot(unanswered=self._depot)
                if self._depot == last:
                    break
        assert silence
        raise silence

    def _silence_of(self, address: str) -> PeerLost | None:
        """Why nobody answers at a depot; None if it does."""
        try:
            if self.caller.known(address) is None:  # it may just be ending, and hear nobody any more
                self.ask(address, "ping")
        except PeerLost as error:
            return error
        return None

    def _find_depot(self, unanswered: str) -> str:
        try:
            session = self.session or default_session()
            return session.find_service(DEPOT, unanswered)
        except TransportError as error:
            raise PeerLost(f"no depot can be had: {error}", peer="the agent of this host") from error

    def let_go(self, address: str, target: int) -> None:
        """This process has no handle of an object any more."""
        conversation = self.caller.known(address)
        if conversation:
            self.tell(conversation, "drop", target)

    def settle(self) -> None:
        """Wait until everything that was sent has arrived, where anybody is there to receive it."""
        for address, conversation in self.caller.conversations():
            if conversation.num_pending and not conversation.closed:
                with contextlib.suppress(PeerLost):
                    self.ask(address, "ping")

    def used(self) -> None:
        """One more handle is here: the session of the run stays open.

        Raises:
            PoolClosed: it has ended.
        """
        with interrupts_deferred, self._lock:
            if not self._num_users and self.session:
                self.session.lease()
            self._num_users += 1

    def unused(self) -> None:
        """One handle less."""
        with interrupts_deferred, self._lock:
            self._num_users -= 1
            if not self._num_users and self.session and not self.session.closed:
                self.session.release()

    @property
    def has_ended(self) -> bool:
        """Whether the run is over."""
        return self.session is not None and self.session.closed

    def close(self) -> None:
        """Hang up; may be called twice."""
        _members.pop(self.run_id, None)
        with contextlib.suppress(PeerLost):
            self.settle()
        self.caller.close("the session has ended")
        self.loop.stop()
        if self.loop.thread and self.loop.thread is not threading.current_thread():
            self.loop.thread.join(_JOIN_S)

    def forget(self) -> None:
        """In a forked child: the links are the parent's."""
        self.caller.forget()
        self.loop.forget()

    def _look(self) -> None:
        """Ping depots of other hosts, and give up those that are silent."""
        now = time.monotonic()
        for conversation, (num_bytes, heard) in list(self._introduced.items()):
            link = conversation.link
            if conversation.closed:
                del self._introduced[conversation]
            elif link.stream.carries_fds:
                continue
            elif link.received_bytes != num_bytes:
                self._introduced[conversation] = (link.received_bytes, now)
            elif now - heard > SILENT_S:
                why = f"nothing was heard of its host for {now - heard:.0f} s"
                for address, silent in self.caller.conversations():
                    if silent is conversation:
                        self._shun(address, why)
                conversation.close(why)
                continue
            self.tell(conversation, "ping")
        self.loop.call_later(1.0, self._look)

    def _shun(self, address: str, why: str) -> None:
        """Do not dial a silent host again at once: each attempt takes seconds."""
        self._silent[address] = (time.monotonic() + _SHUN_S, why)


class ProxyDirectory:
    """The directory of a member's proxies, which know themselves where their objects are: these do not move."""

    def find(self, name: str, replica: int) -> ReplicaLocation:
        return ReplicaLocation("failed", cause="it was given back")

    def replicas(self, name: str) -> int:
        return 1

    def wait_for_news(self, name: str, replica: int, seen: ReplicaLocation, timeout_s: float) -> ReplicaLocation:
        """There are none: what was there and does not answer is gone."""
        return ReplicaLocation("failed", seen.address, seen.target, seen.token, cause=seen.cause)


_members: dict[str, SharingMember] = {}
_inherited: dict[str, tuple[str, str, Callable[[str], str], Passport | None]] = {}
"""In a forked child: what its parent was in each run. It can use what is there, and make nothing new."""
_lock = threading.Lock()


def member_of(session: Session | None = None) -> SharingMember:
    """This process in the run of a session; by default the one that it runs in, or the launcher's default.

    Raises:
        StartFailed, PoolClosed: there is no session and none can be opened.
    """
    here = bootstrap.current
    if here is not None:
        run_id = here.credentials.run_id
        known = _members.get(run_id)
        if known:
            return known
        with interrupts_deferred, _lock:
            if run_id not in _members:
                id, tokens = here.credentials.process_id, tokens_through_agent(here)
                _members[run_id] = SharingMember(run_id, id, tokens, here.passport, None)
            return _members[run_id]
    session = leased(session)
    try:
        with interrupts_deferred, _lock:
            member = _members.get(session.run_id)
            if member is None:
                member = SharingMember(session.run_id, LAUNCHER, session.own_tokens(), session.passport, session)
                _members[session.run_id] = member
                session.when_closed(member.close)
            return member
    finally:
        session.release()


@contextlib.contextmanager
def using(session: Session | None = None) -> Generator[SharingMember]:
    """As `member_of`, with the session held open; by default the one that there is, or a new one.

    Raises:
        StartFailed, PoolClosed: as `member_of`.
    """
    while True:
        member = member_of(session)
        try:
            member.used()
            break
        except PoolClosed:  # it ended for idleness just now: the next one will be new
            if session:
                raise
    try:
        yield member
    finally:
        member.unused()


def member_of_run(run_id: str) -> SharingMember:
    """This process in a run, of which something came here.

    Raises:
        PeerLost: it does not belong to that run, or to none, or the run has ended.
    """
    here = bootstrap.current
    if here is not None and here.credentials.run_id == run_id:
        return member_of()
    member = _members.get(run_id)
    if member is None:
        with interrupts_deferred, _lock:
            if run_id in _inherited and run_id not in _members:
                _members[run_id] = SharingMember(*_inherited[run_id], None)
            member = _members.get(run_id)
    if member is None:
        session = session_of_run(run_id)  # something that others made, before this process made anything
        member = member_of(session) if session else None
    if member is None and here is None and _is_of_multiprocessing() and not _inherited:
        raise PeerLost(
            "this object belongs to a run of Ropewalk, and this process does not: multiprocessing has started it; "
            "start it with ropewalk.Process (or ropewalk.Pool, ropewalk.Executor) to use the object in it",
            peer="another run",
        )
    if member is None or member.has_ended:
        raise PeerLost(
            "this object belongs to another run, or to a session that has ended; make it in the run that uses it "
            "(ropewalk.get_context(engine=...) makes objects for one engine)",
            peer="another run",
        )
    return member


def _is_of_multiprocessing() -> bool:
    """Whether multiprocessing has started this process, or is just starting it."""
    process: Any = multiprocessing.current_process()
    return multiprocessing.parent_process() is not None or getattr(process, "_inheriting", False)


def known_member(run_id: str) -> SharingMember | None:
    """This process in a run, if it has taken part in it; takes no lock, and so may be called anywhere."""
    return _members.get(run_id)


def shown(address: str) -> str:
    """An address for people: the way for other hosts if there is one, without the fingerprint."""
    way = address.rpartition("|")[2]
    return way.partition("/")[0] if way.startswith("tls:") else way


def _silence(address: str, why: str) -> str:
    """That nobody answers at an address, said once: who dials says so as well."""
    if why.startswith("nobody answers at "):
        return why
    return f"nobody answers at {shown(address)}: {why.removeprefix(f'{shown(address)} ')}"


@functools.cache
def who_we_are() -> str:
    """This process, for people of other processes."""
    here = bootstrap.current
    name = here.name if here else "the launcher"
    return f"{name} (pid {os.getpid()} on {here.host if here else platform.node()})"


def _forget_all() -> None:
    for member in list(_members.values()):
        _inherited[member.run_id] = member.identity
        member.forget()
    _members.clear()
    who_we_are.cache_clear()
    global _lock
    _lock = threading.Lock()
    for forget in on_fork:
        forget()


#: What else has to be forgotten in a forked child.
on_fork: list[Callable[[], object]] = []
#: Told of each new link to a depot: the member, the address, the link.
on_dialled: list[Callable[[SharingMember, str, RpcConnection], object]] = []


def _settle_all() -> None:
    for member in list(_members.values()):
        member.settle()


os.register_at_fork(after_in_child=_forget_all)
atexit.register(_settle_all)
# A child that multiprocessing has forked ends without atexit, and knows only what it has registered itself.
util.register_after_fork(_settle_all, lambda settle: util.Finalize(None, settle, exitpriority=0))


__all__ = [
    "DEPOT",
    "SharingMember",
    "known_member",
    "member_of",
    "member_of_run",
    "on_dialled",
    "on_fork",
    "shown",
    "using",
    "who_we_are",
]
