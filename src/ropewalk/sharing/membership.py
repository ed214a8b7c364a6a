"""The membership of this process in its run, or, in a launcher, in each of its runs: links to depots and managers.

Queue ─┐
Lock  ─┼─▶ SharingMember (one for each run) ──▶ Caller ──▶ one link to each depot and manager
proxy ─┘        │ one loop, in a thread, from the first shared object on
                └ each second: a ping to those on other hosts, whose silence would go unnoticed otherwise
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
from ropewalk.control.lone_processes import show_processes
from ropewalk.errors import PeerLost, PoolClosed, TransportError
from ropewalk.processes import bootstrap
from ropewalk.processes.interrupts import interrupts_deferred
from ropewalk.processes.questions import tokens_through_agent
from ropewalk.processes.session import Session
from ropewalk.processes.shared_sessions import default_session, leased, session_of_run
from ropewalk.sharing.depot import DEPOT_TARGET
from ropewalk.transport.credentials import LAUNCHER
from ropewalk.transport.loop import Loop

if TYPE_CHECKING:
    from ropewalk.transport.passport import Passport

DEPOT = "ropewalk.sharing.depot_process:main"
"""The entry of a depot process."""
SILENT_S = 5.0
"""Seconds without a message, not even an answer to a ping, after which a depot on another host counts as gone."""
_SHUN_S = 10.0
"""Seconds in which no connection to it is attempted."""
_ATTEMPTS = 5
"""The number of depots tried, one after the other, if each ends before it answers."""
_JOIN_S = 2.0
"""Seconds to wait for the loop at the end; it ends much sooner."""


class SharingMember:
    """This process, as the depots and managers of one run know it.

    Args:
        run_id: the run.
        process_id: its name in the run.
        tokens: returns the token for the service at an address.
        passport: the passport of this process, in a run of several hosts.
        session: the session of the run, if this is its launcher.
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
        """The arguments from which a forked child makes its own member."""
        self.run_id = run_id
        self.session = session
        self.loop = Loop()
        self.caller = Caller(self.loop, ProxyDirectory(), run_id, process_id, passport=passport)
        self._find_token = tokens
        self._tokens: dict[str, str] = {}
        """Tokens by address; they are valid as long as the service is there."""
        self._depot = ""
        self._finding = threading.Lock()
        """Held while a depot is looked for, which takes seconds if its host is silent."""
        self._lock = threading.Lock()
        """Held briefly, by the loop as well."""
        self._introduced: dict[RpcConnection, tuple[int, float]] = {}
        self._silent: dict[str, tuple[float, str]] = {}
        self._num_users = 0
        self.loop.call_soon(self._look)
        self.loop.start("ropewalk-sharing")

    def place(self, address: str, target: int) -> ReplicaLocation:
        """Return where an object is, with its token, if that was found before (`connection_to`)."""
        return ReplicaLocation("up", address, target, self._tokens.get(address, ""))

    def connection_to(self, address: str, wanted: str = "depot") -> RpcConnection:
        """Return the link to a depot; connects to it if there is none yet.

        Args:
            address: the address of the depot.
            wanted: the service that is called there, for messages.

        Raises:
            PeerLost: there is no answer from there.
        """
        now = time.monotonic()
        until, why = self._silent.get(address, (0.0, ""))
        if now < until:
            raise PeerLost(f"the {wanted} is gone: {_silence(address, why)}", peer=address)
        try:
            if address not in self._tokens and self.caller.known(address) is None:
                self._tokens[address] = self._find_token(address)
            connection = self.caller.connection_to(f"the depot at {address}", self.place(address, DEPOT_TARGET))
        except TransportError as error:
            if time.monotonic() - now > 1.0:
                self._shun(address, str(error))
            raise PeerLost(f"the {wanted} is gone: {_silence(address, str(error))}", peer=address) from error
        mine = (0, time.monotonic())
        if connection not in self._introduced:
            with interrupts_deferred:  # a connection that is noted and not introduced would never be
                if self._introduced.setdefault(connection, mine) is mine:
                    connection.may_tear = False
                    connection.acks.share_page()
                    self.tell(connection, "introduce", who_we_are())
                    for call in on_dialled:
                        call(self, address, connection)
        return connection

    def ask(self, address: str, method: str, *args: object) -> Any:
        """Call a method of a depot itself.

        Args:
            address: the address of the depot.
            method: the name of the method.
            args: plain values.

        Raises:
            PeerLost: the depot is gone.
            Exception: raised by the depot.
        """
        packed = pack_arguments(None, args, {}, keep=False)
        message = Call(0, DEPOT_TARGET, method, False, None, (), packed.shared, 0)
        try:
            return self.connection_to(address).exchange(message, packed)
        except (Lost, NotServed) as error:
            if isinstance(error, Lost):
                self.caller.lose(address, str(error))  # otherwise the next call would try the same link again
            raise PeerLost(f"the depot is gone: {_silence(address, str(error))}", peer=address) from None

    def tell(self, connection: RpcConnection, method: str, *args: object) -> None:
        """Call a method of a depot itself without waiting, not even for room; dropped if it cannot be sent any more."""
        packed = pack_arguments(None, args, {}, keep=True) if args else PackedValue(())
        message = Call(0, DEPOT_TARGET, method, False, None, (), packed.shared, 0)
        with contextlib.suppress(Lost):
            connection.begin(message, packed, Dropped(connection.where), wait_for_room=False)
            connection.flush()

    def depot(self) -> str:
        """Return the address of the depot for objects that are made here: that of this host.

        Raises:
            StartFailed: the depot could not be started.
            PeerLost: its agent is gone, or it runs and does not answer.
        """
        silence: PeerLost | None = None
        with self._finding:
            for _ in range(_ATTEMPTS):
                if self._depot and not (silence := self._silence_of(self._depot)):
                    return self._depot
                # A depot that is not needed ends, perhaps at this moment, and the launcher may not know of that yet.
                last, self._depot = self._depot, self._find_depot(unanswered=self._depot)
                if self._depot == last:
                    break
        assert silence
        raise silence

    def _silence_of(self, address: str) -> PeerLost | None:
        """Return why a depot does not answer; None if it does."""
        try:
            if self.caller.known(address) is None:  # it may be ending, and read no messages any more
                self.ask(address, "ping")
        except PeerLost as error:
            return error
        return None

    def _find_depot(self, unanswered: str) -> str:
        try:
            session = self.session or default_session()
            address = session.find_service(DEPOT, unanswered)
            show_processes(session)
            return address
        except TransportError as error:
            raise PeerLost(f"no depot is available: {error}", peer="the agent of this host") from error

    def let_go(self, address: str, target: int) -> None:
        """Record that this process has no handle of an object any more."""
        connection = self.caller.known(address)
        if connection:
            self.tell(connection, "drop", target)

    def settle(self) -> None:
        """Wait until everything that was sent has arrived, except at depots that are gone."""
        for address, connection in self.caller.connections():
            if connection.num_pending and not connection.closed:
                with contextlib.suppress(PeerLost):
                    self.ask(address, "ping")

    def used(self) -> None:
        """Count one more handle here, so that the session of the run stays open.

        Raises:
            PoolClosed: the session has ended.
        """
        with interrupts_deferred, self._lock:
            if not self._num_users and self.session:
                self.session.lease()
            self._num_users += 1

    def unused(self) -> None:
        """Count one handle less."""
        with interrupts_deferred, self._lock:
            self._num_users -= 1
            if not self._num_users and self.session and not self.session.closed:
                self.session.release()

    @property
    def has_ended(self) -> bool:
        """Whether the run is over."""
        return self.session is not None and self.session.closed

    def close(self) -> None:
        """Close the links; may be called twice."""
        _members.pop(self.run_id, None)
        with contextlib.suppress(PeerLost):
            self.settle()
        self.caller.close("the session has ended")
        self.loop.stop()
        if self.loop.thread and self.loop.thread is not threading.current_thread():
            self.loop.thread.join(_JOIN_S)

    def forget(self) -> None:
        """Drop the links in a forked child: they are the parent's."""
        self.caller.forget()
        self.loop.forget()

    def _look(self) -> None:
        """Ping depots of other hosts, and disconnect silent ones."""
        now = time.monotonic()
        for connection, (num_bytes, heard) in list(self._introduced.items()):
            link = connection.link
            if connection.closed:
                del self._introduced[connection]
            elif link.stream.carries_fds:
                continue
            elif link.received_bytes != num_bytes:
                self._introduced[connection] = (link.received_bytes, now)
            elif now - heard > SILENT_S:
                why = f"nothing was heard of its host for {now - heard:.0f} s"
                for address, silent in self.caller.connections():
                    if silent is connection:
                        self._shun(address, why)
                connection.close(why)
                continue
            self.tell(connection, "ping")
        self.loop.call_later(1.0, self._look)

    def _shun(self, address: str, why: str) -> None:
        """Do not connect to a silent host again immediately: each attempt takes seconds."""
        self._silent[address] = (time.monotonic() + _SHUN_S, why)


class ProxyDirectory:
    """The directory of a member's proxies, which know where their objects are: these do not move."""

    def find(self, name: str, replica: int) -> ReplicaLocation:
        return ReplicaLocation("failed", cause="it was given back")

    def replicas(self, name: str) -> int:
        return 1

    def wait_for_news(self, name: str, replica: int, seen: ReplicaLocation, timeout_s: float) -> ReplicaLocation:
        """Raise: an object does not move, so one that does not answer is gone."""
        return ReplicaLocation("failed", seen.address, seen.target, seen.token, cause=seen.cause)


_members: dict[str, SharingMember] = {}
_inherited: dict[str, tuple[str, str, Callable[[str], str], Passport | None]] = {}
"""In a forked child, the identities of its parent in each run. It can use existing objects, and make none."""
_lock = threading.Lock()


def member_of(session: Session | None = None) -> SharingMember:
    """Return this process's member in the run of a session; by default its own run, or the launcher's default session.

    Args:
        session: the session of the run; None: the default.

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
    """Yield the member like `member_of`, with the session held open; by default the present session, or a new one.

    Raises:
        StartFailed, PoolClosed: as `member_of`.
    """
    while True:
        member = member_of(session)
        try:
            member.used()
            break
        except PoolClosed:  # it has just ended because it was idle: the next one is new
            if session:
                raise
    try:
        yield member
    finally:
        member.unused()


def member_of_run(run_id: str) -> SharingMember:
    """Return this process's member in the run of an object that was sent here.

    Args:
        run_id: the id of the run.

    Raises:
        PeerLost: this process belongs to another run, or to none, or the run has ended.
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
        session = session_of_run(run_id)  # an object of another process, before this process made any
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
    """Whether multiprocessing has started this process, or is starting it."""
    process: Any = multiprocessing.current_process()
    return multiprocessing.parent_process() is not None or getattr(process, "_inheriting", False)


def known_member(run_id: str) -> SharingMember | None:
    """Return this process's member in a run, if it has one; takes no lock, so it can be called anywhere."""
    return _members.get(run_id)


def shown(address: str) -> str:
    """Format an address for messages: the one for other hosts if there is one, without the fingerprint."""
    way = address.rpartition("|")[2]
    return way.partition("/")[0] if way.startswith("tls:") else way


def _silence(address: str, why: str) -> str:
    """Describe the silence of an address once, because the connecting code describes it as well."""
    if why.startswith("nobody answers at "):
        return why
    return f"nobody answers at {shown(address)}: {why.removeprefix(f'{shown(address)} ')}"


@functools.cache
def who_we_are() -> str:
    """Describe this process in messages of other processes."""
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


on_fork: list[Callable[[], object]] = []
"""Called in a forked child, to forget the parent's state."""
on_dialled: list[Callable[[SharingMember, str, RpcConnection], object]] = []
"""Called for each new link to a depot, with the member, the address and the link."""


def _settle_all() -> None:
    for member in list(_members.values()):
        member.settle()


# What a task has put is there when its result is: before anything that its caller puts then, and if it is killed.
bootstrap.on_flush.append(_settle_all)
os.register_at_fork(after_in_child=_forget_all)
atexit.register(_settle_all)
# A child that multiprocessing has forked ends without atexit, and runs only finalizers that it has registered itself.
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
