"""A node's view of itself and of its program, available from any of its threads.

In the code of a node:

    rw.current_node().generation      how many times this replica was restarted
    rw.stopping(), rw.wait_for_stop() whether the node was asked to end
    rw.on_stop(callback)              calls back once when it is
    rw.checkpoint_here()              the state is consistent at this point and may be saved
    rw.stop("all done")               stops the whole program
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ropewalk.calls import call_context
from ropewalk.calls.call_count import CallCount
from ropewalk.calls.caller import Caller
from ropewalk.calls.client import Client
from ropewalk.calls.markers import MethodFacts
from ropewalk.processes.gpus import VISIBLE
from ropewalk.processes.notifier import Notifier
from ropewalk.program.handle import Handle, replace_handles
from ropewalk.program.messages import NodeStart, UnitName

if TYPE_CHECKING:
    from ropewalk.program.node_host import NodeHost

logger = logging.getLogger(__name__)

_GLOO = "GLOO_SOCKET_IFNAME"
"""The interface of torch's gloo; without it gloo takes the one of the address that the host's name has."""


class NodeContext:
    """One replica of a node, seen from inside.

    Attributes:
        name: the node's name.
        replica: index of this replica, from 0.
        replicas: number of replicas when this one was started.
        generation: 0 at first, one more after each restart.
        attempt: how many times this replica has failed.
        program: the program's name.
        thread: the identity of its own thread; 0 before it runs.
    """

    def __init__(self, host: NodeHost, caller: Caller, unit: UnitName, start: NodeStart, program: str) -> None:
        self.name: str = start.name
        self.replica: int = unit.replica
        self.replicas: int = start.replicas
        self.generation: int = unit.generation
        self.attempt: int = start.attempt
        self.program = program
        self.unit = unit
        self.checkpoint_s: float | None = start.checkpoint_s
        self.thread = 0
        self._host = host
        self._caller = caller
        self._calls_to: dict[str, CallCount] = {}
        """The calls that its clients have made, by name of the service."""
        self._waits = False
        """Whether its own thread waits for the stop and the host knows."""
        self._stopped = threading.Event()
        self._callbacks: list[Callable[[], object]] = []
        self._num_called = 0
        """Number of callbacks that are running."""
        self._lock = threading.RLock()
        self._called = Notifier()

    def __repr__(self) -> str:
        return f"<node {self.label}, generation {self.generation}>"

    @property
    def label(self) -> str:
        """Its name in messages, such as "learner" or "actor.3"."""
        return self.name if self.replicas == 1 else f"{self.name}.{self.replica}"

    @property
    def calls_to(self) -> dict[str, int]:
        """The number of calls that it has made to each service, by name."""
        return {name: count.num for name, count in self._calls_to.copy().items()}

    def resolve(self, value: Any) -> Any:
        """Replace handles by clients and construct deferred values, at any depth."""
        return replace_handles(value, self._client, lambda deferred: deferred.build())

    def serve(self, obj: object, methods: Mapping[str, MethodFacts]) -> None:
        """Let other nodes call the methods of an object, after restoring its saved state if there is one.

        Args:
            obj: the object.
            methods: the methods that can be called, by name.

        Raises:
            CheckpointCorrupt: none of its saved states can be read.
        """
        self._host.serve(self, obj, methods)

    @property
    def stopping(self) -> bool:
        """Whether this node was asked to end."""
        return self._stopped.is_set()

    def wait_for_stop(self, timeout_s: float | None = None) -> bool:
        """Wait until this node is asked to end.

        A node whose own work waits here has no end of its own, so the program does not wait for it: the program stops
        it when all nodes that do have an end have completed. For a worker this holds only when it waits without a
        timeout; a wait with a timeout may be a pause in work that comes to an end.

        Args:
            timeout_s: seconds; None waits for ever.

        Returns:
            True when the node was asked to end, False after `timeout_s`.
        """
        if not self._waits and threading.get_ident() == self.thread and call_context.current.get() is None:
            self._waits = self._host.waits_for_stop(self, limited=timeout_s is not None)
        self._host.loop.hand_over()
        return self._stopped.wait(timeout_s)

    def checkpoint_here(self) -> bool:
        """Declare that the state is consistent at this point: it is saved here and only here, if that is due.

        For the `run` of a service with `state_dict` and `load_state_dict`, and for threads that it starts; elsewhere
        the state may be in the middle of a step. No call of the service runs while `state_dict` does, except for
        concurrent ones, so hold no lock here that calls wait for.

        Returns:
            Whether `state_dict` was called. Its result is written in the background.

        Raises:
            RuntimeError: this node has no state.
        """
        return self._host.checkpoint_here(self)

    def on_stop(self, callback: Callable[[], object]) -> None:
        """Call `callback` once, in a thread of its own, when this node is asked to end; at once if it already was."""
        with self._lock:
            self._callbacks.append(callback)
            if not self._stopped.is_set():
                return
        self.ask_to_stop()

    def stop_program(self, reason: str = "") -> None:
        """Stop the whole program; return at once.

        Args:
            reason: shown to the user; by default, that this node asked for it.
        """
        self._host.stop_program(reason or f"{self.label} asked for it")

    def rendezvous(self) -> dict[str, str]:
        """Wait for all ranks; return the environment variables that `torchrun` would set.

        They are those of "Environment Variables" in the documentation of `torchrun` and those that its agent adds
        (`LocalElasticAgent`), CUDA_VISIBLE_DEVICES where each rank was given one GPU (see `rank_places`), and, if the
        ranks are on several hosts and the name of this one leads to loopback, GLOO_SOCKET_IFNAME unless it is set.

        Raises:
            ProgramStopped: the node is being ended, perhaps because another rank has failed.
            StartFailed: the ranks are on several hosts, and these have no addresses.
        """
        at, size = self._host.rendezvous(self.unit), self.replicas
        return (
            {
                "RANK": str(at.rank),
                "WORLD_SIZE": str(size),
                "LOCAL_RANK": str(at.local_rank),
                "LOCAL_WORLD_SIZE": str(at.local_size),
                "GROUP_RANK": str(at.group_rank),
                "GROUP_WORLD_SIZE": str(at.num_groups),
                "ROLE_NAME": self.name,
                "ROLE_RANK": str(at.rank),
                "ROLE_WORLD_SIZE": str(size),
                "MASTER_ADDR": at.address,
                "MASTER_PORT": str(at.port),
                "TORCHELASTIC_RESTART_COUNT": str(self.generation),
                "TORCHELASTIC_MAX_RESTARTS": str(at.max_restarts),
                "TORCHELASTIC_RUN_ID": self._host.run_id,
                "TORCHELASTIC_USE_AGENT_STORE": "False",  # rank 0 opens the store, as MASTER_ADDR and MASTER_PORT say
                "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
            }
            | ({VISIBLE: at.visible_gpus} if at.visible_gpus else {})
            | self._interface(at.num_groups)
        )

    def _interface(self, num_hosts: int) -> dict[str, str]:
        """Return the variable that names the interface for gloo, if it would take one that others do not reach."""
        ip = self._host.ip if num_hosts > 1 and _GLOO not in os.environ else ""
        if not ip:
            return {}
        from ropewalk.transport.interfaces import interface_where_name_misleads  # only ranks on several hosts need it

        name = interface_where_name_misleads(ip)
        return {_GLOO: name} if name else {}

    def ask_to_stop(self) -> None:
        """Handle the launcher's request to end; may be called twice."""
        with self._lock:
            callbacks, self._callbacks = self._callbacks, []
            self._num_called += len(callbacks)  # before the node can learn that it is to end and wait for them
            self._stopped.set()
        for callback in callbacks:
            self._host.run_aside(lambda callback=callback: self._call(callback))

    def wait_for_callbacks(self, timeout_s: float) -> bool:
        """Wait until all stop callbacks have returned; they may take longer than the node itself."""
        return self._called.wait_until(lambda: not self._num_called, timeout_s)

    def _call(self, callback: Callable[[], object]) -> None:
        try:
            callback()
        except Exception:  # raised by user code; the node ends in any case
            logger.exception("%s: a stop callback failed", self.label)
        finally:
            with self._lock:
                self._num_called -= 1
            self._called.ring()

    def _client(self, handle: Handle[Any]) -> Client:
        methods, retries = handle.methods or {}, handle.on_lost == "retry"
        count = self._calls_to.setdefault(handle.name, CallCount())
        return Client(self._caller, handle.name, handle.address, methods, retries=retries, count=count)


# The node that the running code belongs to

_of_thread = threading.local()
_all: list[NodeContext] = []


def enter(context: NodeContext) -> None:
    """Make the running thread the main thread of a node."""
    _of_thread.context = context
    context.thread = threading.get_ident()
    _all.append(context)


def leave(context: NodeContext) -> None:
    """Note that the node has returned."""
    _of_thread.context = None
    if context in _all:
        _all.remove(context)


def contexts_here() -> list[NodeContext]:
    """The nodes that run in this process."""
    return list(_all)


def current_node() -> NodeContext:
    """Return the node that the running code belongs to.

    A thread that a node started belongs to that node if the node has a process of its own.

    Raises:
        RuntimeError: the code runs outside of any node, or in a thread that may belong to several.
    """
    running = call_context.current.get()
    served: Any = getattr(running.call if running else None, "served", None)
    context: NodeContext | None = getattr(served, "owner", None) or getattr(_of_thread, "context", None)
    if context is not None:
        return context
    if len(_all) == 1:
        return _all[0]
    if not _all:
        raise RuntimeError(
            "this code does not run inside a node: current_node(), stop() and the like are for code that a program "
            "launched; outside, use what program.launch() returned"
        )
    names = ", ".join(sorted(context.label for context in _all))
    raise RuntimeError(
        f"this thread may belong to any of the nodes of this process ({names}); call rw.current_node() in a thread of "
        "the node, and hand it over"
    )


def _any_node() -> NodeContext:
    """As `current_node`, but where several nodes share the process, return any of them; for requests to the program."""
    try:
        return current_node()
    except RuntimeError:
        if not _all:
            raise
        return _all[0]


def stop(reason: str = "") -> None:
    """Stop the whole program, from any thread of any node; return at once.

    Args:
        reason: shown to the user; may be empty.

    Raises:
        RuntimeError: the code runs outside of a program.
    """
    _any_node().stop_program(reason)


def stopping() -> bool:
    """Whether the node of the running code was asked to end.

    Raises:
        RuntimeError: the code runs outside of a program.
    """
    return _any_node().stopping


def wait_for_stop(timeout_s: float | None = None) -> bool:
    """Wait until the node is asked to end.

    A service whose `run` waits here, and a worker that waits here without a timeout, do not end by themselves: the
    program does not wait for them, and stops them when everything else has completed.

    Args:
        timeout_s: seconds; None waits for ever.

    Returns:
        True when the node was asked to end, False after `timeout_s`.

    Raises:
        RuntimeError: the code runs outside of a program.
    """
    return _any_node().wait_for_stop(timeout_s)


def checkpoint_here() -> bool:
    """Declare, in the `run` of a service, that its state is consistent here; see `NodeContext.checkpoint_here`.

    Returns:
        Whether `state_dict` was called.

    Raises:
        RuntimeError: the code runs outside of a service with a state.
    """
    return current_node().checkpoint_here()


def on_stop(callback: Callable[[], object]) -> None:
    """Call `callback` once, in a thread of its own, when the node is asked to end; at once if it already was.

    Args:
        callback: takes no arguments; its result is ignored.

    Raises:
        RuntimeError: the code runs outside of a program.
    """
    current_node().on_stop(callback)
