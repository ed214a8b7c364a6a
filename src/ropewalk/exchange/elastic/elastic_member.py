"""`ElasticMember`: the service of a worker, for its peers and the coordinator; its `run` is the user's code.

peers ── deliver(packet) ──▶ inbox ──▶ collectives of the group          each call is fast,
coordinator ── hear(view | commit) ──▶ mailbox ──▶ trainer               and runs in the loop's thread
rank 0 ── take_state(bytes) ──▶ mailbox
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any

from ropewalk.calls.client import Client
from ropewalk.errors import (
    ExchangeInvalid,
    FailedForGood,
    GradientNotFinite,
    MemberLost,
    ProgramStopped,
    ServiceLost,
)
from ropewalk.exchange.elastic.coordinator import ExchangeTimeouts
from ropewalk.exchange.elastic.mailbox import Mailbox
from ropewalk.exchange.elastic.membership import Commit, Expel, Finish, MembershipView
from ropewalk.exchange.elastic.worker import ElasticWorker
from ropewalk.exchange.exchange import Exchange
from ropewalk.exchange.exchange_maker import made_exchange
from ropewalk.exchange.groups.group import Group
from ropewalk.exchange.groups.inbox import Packet
from ropewalk.exchange.groups.link_emulation import LinkEmulation
from ropewalk.exchange.groups.link_group import LinkGroup, Send
from ropewalk.exchange.groups.member import GroupMember, one_way
from ropewalk.exchange.groups.watched_worker import WatchedWorker
from ropewalk.exchange.parameter_server.parameter_server import ParameterServer
from ropewalk.program import node_context
from ropewalk.transport.failures import failure_of

_LAST_STEP_S = 0.5
"""Seconds that a stopping worker has for its last step, which it then abandons. One second after the request to stop,
the program refuses its calls."""
_NAMED_FIRST_S = 2.0
"""Seconds for which a member leaves it to others to tell of their gradients that are not finite; they may go on."""
_LAST_WORDS_S = 0.3
_LOOK_S = 0.1
"""Seconds between two looks whether a worker that is waited for is still a member."""


@dataclass(frozen=True, slots=True)
class ElasticConfig:
    """The configuration that all workers of a training share.

    Attributes:
        train_fn: called as `train_fn(worker, *args, **kwargs)`.
        exchange: an argument of `make_exchange`, or a function that makes an exchange.
        servers: the client of a parameter server's shards, if gradients travel through them.
        args: positional arguments of `train_fn`.
        kwargs: keyword arguments of `train_fn`.
        redo: "recompute" or "keep"; see `data_parallel`.
        seed: seed of random numbers in losses.
        timeouts: how long the coordinator and workers wait.
        shaping: makes links slower than they are, for experiments.
    """

    train_fn: Callable[..., object]
    exchange: Any
    servers: Client | None = None
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    redo: str = "recompute"
    seed: int = 0
    timeouts: ExchangeTimeouts = field(default_factory=ExchangeTimeouts)
    shaping: LinkEmulation | None = None


class ElasticMember(GroupMember, WatchedWorker):
    """One worker of an elastic training.

    Args:
        training: the configuration of the training.
        coordinator: the client of the coordinator, which decides which workers are members.
        workers: the client of all workers, this one included.
    """

    def __init__(self, training: ElasticConfig, coordinator: Client, workers: Client) -> None:
        GroupMember.__init__(self)
        WatchedWorker.__init__(self)
        self.training = training
        self.coordinator = coordinator
        self._workers = workers
        self._replica = node_context.current_node().replica
        self._clients: dict[int, Client] = {}
        self._deliveries: dict[str, Future[Any]] = {}
        """By receiver, the weights that were sent last."""
        self._group: Group | None = None
        self._is_expelled = False
        self.interrupt: Callable[[int], object] = lambda epoch: None
        """Takes back what the exchange does in an epoch; set by the trainer, called by any thread."""
        self.leave_now: Callable[[], bool] = lambda: False
        """Leaves in the middle of a step, if that is possible; set and called likewise."""
        self.mailbox: Mailbox = Mailbox(self._break_off)

    # Called by peers and the coordinator; `name` is given where a call may reach the successor of its addressee

    def hear(self, name: str, message: MembershipView | Commit | Expel | Finish) -> None:
        """Receive a decision of the coordinator."""
        if name != self.name:
            return
        match message:
            case MembershipView():
                self.mailbox.put_view(message)
            case Commit():
                self.mailbox.put_commit(message)
            case Expel():
                self._is_expelled = True
                self._end(
                    MemberLost(
                        f"{message.why}, and the others went on without it: it ends, and may join anew", members=(name,)
                    )
                )
            case Finish():
                self._end(ProgramStopped(f"the training is over: {message.why}"))

    def take_state(self, name: str, epoch: int, state: bytes) -> None:
        """Receive the weights and all state that belongs to them from rank 0."""
        if name == self.name:
            self.mailbox.put_state(epoch, state)

    # For the worker's own code

    def make_group(self, view: MembershipView) -> Group:
        """Connect the members of a view to a group."""
        sends = [self._send_to(name) for name in view.members]
        rank = view.members.index(self.name)
        group = LinkGroup(
            rank,
            view.members,
            view.epoch,
            sends,
            self.inbox,
            timeout_s=self.training.timeouts.stalled_s,
            shaping=self.training.shaping,
        )
        self._group = group
        if self.mailbox.epoch > view.epoch or self.mailbox.has_ended:  # a change came while the group was made
            group.abort()
        return group

    def send_state(self, names: Sequence[str], epoch: int, state: bytes) -> None:
        """Send weights to new members; does not wait."""
        clients = {name: self._client(name) for name in names}
        self._deliveries = {
            name: client.take_state.future(name, epoch, state) for name, client in clients.items() if client is not None
        }

    def wait_delivered(self) -> None:
        """Wait until the weights that were sent last have arrived, or their receivers are no members any more."""
        for name, delivery in self._deliveries.items():
            while name in self.mailbox.members and not self.mailbox.has_ended:
                if wait([delivery], _LOOK_S).done:
                    break

    def new_exchange(self) -> Exchange:
        """Make the configured exchange, for this worker alone."""
        configured, servers = self.training.exchange, self.training.servers
        if servers is None:
            return made_exchange(configured)
        made: Any = configured() if callable(configured) else configured
        if not isinstance(made, Exchange):
            return ParameterServer(servers, made, shaping=self.training.shaping)
        if not isinstance(made, ParameterServer):
            raise ExchangeInvalid(f"{type(made).__name__} needs no servers; leave out servers=, or use ParameterServer")
        if made.settings.optimizer is not None:
            raise ExchangeInvalid(
                "servers that own the weights take a step when they have all gradients, and elastic training when all "
                "members have voted; give the optimizer to worker.trainer and leave it out of ParameterServer"
            )
        made.connect(servers, self.training.shaping)
        return made

    def run(self) -> None:
        """Call the user's function, and tell the others how it ended."""
        training = self.training
        worker = ElasticWorker(self)
        try:
            self.coordinator.hello(self.name, self._replica)
            node_context.on_stop(self._stop)
            training.train_fn(worker, *training.args, **training.kwargs)
            worker.settle()
            self.coordinator.finished(self.name)
        except Exception as error:
            if self._is_expelled:
                raise  # the node is restarted, and joins as a new member
            if self._is_of_the_end(error):
                return
            # All members raise this error. The ranks that it names tell first: their code made the gradient.
            is_of_others = isinstance(error, GradientNotFinite) and error.ranks and worker.rank not in error.ranks
            if is_of_others and node_context.wait_for_stop(_NAMED_FIRST_S):
                return
            self._tell_failed(error)
            # The program ends with the error, and this worker must not be restarted, unless it was taken for dead.
            while not node_context.wait_for_stop(_LOOK_S):
                if self._is_expelled:
                    raise
        finally:
            worker.close()
            self._has_ended.set()

    def _tell_failed(self, error: Exception) -> None:
        try:
            self.coordinator.failed(self.name, failure_of(error, __name__))
        except (ProgramStopped, ServiceLost):
            if node_context.stopping():
                raise
            # The training is over for all others. Restarted, this worker would have nothing to do, and end well.
            raise FailedForGood(f"{type(error).__name__}: {error}") from error

    def _is_of_the_end(self, error: Exception) -> bool:
        """Whether an error was raised because this worker, or the whole training, is over."""
        if isinstance(error, ServiceLost):
            return error.service == "coordinator"
        return isinstance(error, ProgramStopped)

    def _stop(self) -> None:
        """Leave because the program is stopping this worker; in a thread of its own."""
        with contextlib.suppress(ProgramStopped, ServiceLost):
            self.coordinator.leave(self.name)
            if self._has_ended.wait(_LAST_STEP_S) or (not self.leave_now() and self._has_ended.wait(_LAST_WORDS_S)):
                return
        self._end(ProgramStopped(f"{self.name} was asked to stop, and its last step took over {_LAST_STEP_S:g} s"))

    def _end(self, error: Exception) -> None:
        self.mailbox.end(error)
        if self._group is not None:
            self._wake_up(self._group)

    def _break_off(self, view: MembershipView) -> None:
        """Stop waiting for the previous members, because the members have changed."""
        group = self._group
        if group is not None and group.epoch < view.epoch:
            self._wake_up(group)

    def _wake_up(self, group: Group) -> None:
        group.abort()
        if self.training.servers is not None:
            # The exchange waits for servers, not for the group. This is the loop's thread, and must not wait.
            interrupt = functools.partial(self.interrupt, group.epoch)
            threading.Thread(target=interrupt, name=f"{self.name} interrupt", daemon=True).start()

    def _send_to(self, name: str) -> Send:
        client = self._client(name)
        if client is not None:
            return one_way(client)

        def refuse(_packet: Packet) -> None:
            raise ServiceLost(f"{name} is being scaled away", service=name, replica=_replica_of(name))

        return refuse

    def _client(self, name: str) -> Client | None:
        """Return the client of a member; None if the program has been scaled down, and this member will leave."""
        replica = _replica_of(name)
        if replica not in self._clients:
            try:
                self._clients[replica] = self._workers[replica]
            except IndexError:
                return None
        return self._clients[replica]


def _replica_of(name: str) -> int:
    return int(name.rpartition("#")[0].rpartition(".")[2])
