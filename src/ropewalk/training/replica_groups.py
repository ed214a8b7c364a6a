"""Groups in which the replicas of a stage exchange gradients: links of the program, one inbox for each stage."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping

from ropewalk.errors import ExchangeInvalid
from ropewalk.exchange.bucketed import BucketedExchange
from ropewalk.exchange.exchange_maker import MakesExchange, check_setting, made_exchange
from ropewalk.exchange.groups.inbox import Inbox, Packet
from ropewalk.exchange.groups.link_group import LinkGroup, Send
from ropewalk.exchange.parameter_server.parameter_server import ParameterServer
from ropewalk.pipeline.plans import Plan
from ropewalk.pipeline.stages.exchange_sums import ReplicaExchange
from ropewalk.pipeline.stages.gradient_sums import Contributor
from ropewalk.pipeline.stages.running_stage import RunningStage


class Inboxes:
    """The inboxes of one process, for all epochs: packets may arrive before the group that they are for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of_stage: dict[int, Inbox] = {}

    def of(self, stage: int) -> Inbox:
        """Return the inbox of a stage."""
        with self._lock:
            return self._of_stage.setdefault(stage, Inbox())

    def deliver(self, stage: int, packet: Packet) -> None:
        """Accept a packet; may be called by any thread."""
        self.of(stage).deliver(packet)


def keeps_state(exchange: MakesExchange | None) -> bool:
    """Return whether the exchange of a user's setting has state, such as what a compressor keeps back for later."""
    if exchange is None:
        return False
    made = made_exchange(exchange)
    made.close()
    return isinstance(made, BucketedExchange) and made.keeps_state


def check_exchange(exchange: object) -> None:
    """Check that stages can make an exchange from the user's setting.

    Args:
        exchange: the user's setting.

    Raises:
        ExchangeInvalid: they cannot.
    """
    if exchange is None:
        return
    check_setting(exchange, "replica")
    made: object = exchange.func if isinstance(exchange, functools.partial) else exchange
    if isinstance(made, type) and issubclass(made, ParameterServer):
        raise ExchangeInvalid(
            "the replicas of a stage go back to a snapshot after a death, and a parameter server does not go with "
            "them; use AllReduce or AllGather, or train with ropewalk.exchange.data_parallel(..., servers=2)"
        )


def exchanges_of(
    make: MakesExchange,
    plan: Plan,
    stages: Mapping[int, RunningStage],
    epoch: int,
    sends: Callable[[int], list[Send]],
    inboxes: Inboxes,
) -> dict[Contributor, ReplicaExchange]:
    """Make the exchanges of one worker's stages that have replicas.

    Args:
        make: makes an exchange, one for each stage.
        plan: says which workers are the replicas.
        stages: the stages of this worker.
        epoch: the epoch of the deployment.
        sends: for a stage, by replica, functions that send a packet to that replica's inbox for the stage.
        inboxes: the inboxes of this process.

    Returns:
        The exchange of each member.
    """
    found: dict[Contributor, ReplicaExchange] = {}
    for id, stage in stages.items():
        if plan.stages[id].replicas == 1:
            continue
        names = [f"stage {id} replica {replica}" for replica in range(plan.stages[id].replicas)]
        group = LinkGroup(stage.setup.replica, names, epoch, sends(id), inboxes.of(id))
        exchange = made_exchange(make)
        if (bound := ReplicaExchange.bind(exchange, stage, plan, group)) is not None:
            found[Contributor(id, stage.setup.replica)] = bound
    return found
