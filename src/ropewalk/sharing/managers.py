"""Managers: processes that keep objects for others, with the interface of `multiprocessing.managers`.

    manager.Simulator(seed) ─▶ made in the manager's process ─▶ proxy ─▶ any process of the run
    manager.Queue()         ─▶ one of ours, kept there ───────▶ handle ─▶ any process of the run

A manager belongs to the process that called `start`, and ends with it. It is reachable from within its run only, by
proxies that were sent, or with `connect`. Beyond the standard library, types may be lambdas or be defined in
`__main__`, proxies may be called without waiting (`proxy.step.future(...)`), proxies and managers may be sent
anywhere, and a lock whose holder dies becomes free.
"""

from __future__ import annotations

import contextlib
import enum
import multiprocessing.managers
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing import ProcessError, current_process
from multiprocessing.managers import Namespace, RemoteError, SharedMemoryManager  # type: ignore[attr-defined]
from multiprocessing.process import AuthenticationString  # type: ignore[attr-defined]  # not in the stubs
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from ropewalk.engines.resources import Resources
from ropewalk.pool.pool import Pool
from ropewalk.processes.session import Session
from ropewalk.processes.shared_sessions import session_of
from ropewalk.sharing import managed, proxy_types
from ropewalk.sharing.manager_owner import ManagerProcess
from ropewalk.sharing.manager_server import CABINET_TARGET, proof_of
from ropewalk.sharing.membership import member_of, member_of_run
from ropewalk.sharing.object_calls import ObjectCalls, facts_of
from ropewalk.sharing.proxies import AutoProxy, BaseProxy, MakeProxyType, Token
from ropewalk.sharing.shared_object import ObjectLocation, SharedObject, create_at
from ropewalk.transport.address import parse_address

_standard: Any = multiprocessing.managers  # the stubs are incomplete
Value: Any = _standard.Value
Array: Any = _standard.Array
_STRANGERS = (
    "a manager of Ropewalk is reached from within its run only, at an address of its own: leave `address` and a port "
    "out, start() it, and give manager.address (or the manager) to those who are to connect()"
)


class State(enum.Enum):
    """The states of a manager."""

    INITIAL = 0
    STARTED = 1
    SHUTDOWN = 2


class BaseManager:
    """A process that keeps objects of registered types; see `register`.

    Args:
        address: the address of a manager to `connect` to. A manager that is started chooses an address itself.
        authkey: the key that connecting processes must know; by default that of this process.
        serializer: "pickle", or "xmlrpclib" for proxies that carry only values that XML-RPC supports.
        ctx: a context whose session is used; a context of multiprocessing has no effect.
        shutdown_timeout: seconds that the process is given to end before it is killed.
        engine: where the process runs, such as "local"; the setting `engine` by default.
        session: a session to share, instead.
        resources: the resources that the process requests.

    Example:
        >>> from ropewalk.managers import BaseManager
        >>> class Shelf(BaseManager): ...
        >>> Shelf.register("Books", list)
        >>> with Shelf() as shelf:
        ...     books = shelf.Books(["Moby-Dick"])
        ...     books.append("Emma")
        ...     print(books)
        ['Moby-Dick', 'Emma']
    """

    _registry: ClassVar[dict[str, tuple[Any, ...]]] = {}

    def __init__(
        self,
        address: Any = None,
        authkey: bytes | None = None,
        serializer: str = "pickle",
        ctx: Any = None,
        *,
        shutdown_timeout: float = 1.0,
        engine: str | None = None,
        session: Session | None = None,
        resources: Resources | None = None,
    ) -> None:
        if serializer not in ("pickle", "xmlrpclib"):
            raise KeyError(f"serializer must be 'pickle' or 'xmlrpclib', not {serializer!r}")
        self._address = address
        self._authkey: bytes = AuthenticationString(current_process().authkey if authkey is None else authkey)
        self._serializer = serializer
        self._shutdown_timeout = shutdown_timeout
        self._engine = engine
        self._session = session or (None if engine else session_of(ctx))
        self._resources = resources
        self._process: ManagerProcess | None = None
        self._name = type(self).__name__
        self._run_id = ""
        self._end: weakref.finalize[Any, Any] | None = None
        """Ends the process when this is collected."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._state.name.lower()}>"

    @classmethod
    def register(
        cls,
        typeid: str,
        callable: Callable[..., Any] | None = None,
        proxytype: Any = None,
        exposed: Sequence[str] | None = None,
        method_to_typeid: Mapping[str, str] | None = None,
        create_method: bool = True,
    ) -> None:
        """Register a type of objects for managers of this class, and of classes derived from it from now on.

        Args:
            typeid: the name of the type, and of the manager method that makes an object.
            callable: makes an object, in the manager; None for managers that only connect.
            proxytype: the type of its proxies; by default one with the exposed methods.
            exposed: names of the methods that can be called; by default `proxytype._exposed_`, or all public ones.
            method_to_typeid: maps methods that return proxies to the types of these.
            create_method: whether managers get a method to make an object.
        """
        if "_registry" not in cls.__dict__:
            cls._registry = cls._registry.copy()
        proxytype = AutoProxy if proxytype is None else proxytype
        exposed = exposed or getattr(proxytype, "_exposed_", None)
        method_to_typeid = method_to_typeid or getattr(proxytype, "_method_to_typeid_", None)
        for key, value in (method_to_typeid or {}).items():
            assert type(key) is str, f"{key!r} is not a string"
            assert type(value) is str, f"{value!r} is not a string"
        cls._registry[typeid] = (callable, exposed, method_to_typeid, proxytype)
        if create_method:

            def make(self: BaseManager, /, *args: Any, **kwds: Any) -> Any:
                token, exposed = self._create(typeid, *args, **kwds)
                return proxytype(token, self._serializer, manager=self, authkey=self._authkey, exposed=exposed)

            make.__name__ = make.__qualname__ = typeid
            setattr(cls, typeid, make)

    def start(self, initializer: Callable[..., object] | None = None, initargs: Sequence[Any] = ()) -> None:
        """Start the manager's process.

        Args:
            initializer: called in the process first.
            initargs: its arguments.

        Raises:
            ProcessError: the manager was started already, or has been shut down.
            ValueError: it was given an address with a port, which strangers could reach.
            TypeError: the initializer cannot be called.
            NotPicklable: a registered callable, or the initializer, cannot be sent to the process.
            InitializerFailed: the initializer raised.
            StartFailed: the process could not be started.
        """
        self._check_initial()
        if initializer is not None and not callable(initializer):
            raise TypeError("initializer must be a callable")
        if self._address is not None and not _leaves_port_open(self._address):
            raise ValueError(f"address={self._address!r}: {_STRANGERS}")
        process = self._process = ManagerProcess(
            type(self).__name__,
            (self._registry, initializer, tuple(initargs)),
            bytes(self._authkey),
            self._session,
            self._engine,
            self._resources,
        )
        process.wait_until_up()
        self._use(process.address, process.name, process.session.run_id)
        self._end = weakref.finalize(self, process.stop_soon, self._shutdown_timeout)
        self._end.atexit = False
        process.stop_at_exit(self._shutdown_timeout)
        member_of(process.session)  # the membership by which this process reaches it

    def connect(self) -> None:
        """Connect to a manager that another process of the run has started, at the given address.

        Raises:
            ValueError: the address is not that of a manager of Ropewalk.
            AuthenticationError: the authkey is not that of the manager.
            PeerLost: there is no manager at the address.
        """
        if not _is_ours(self._address):
            raise ValueError(f"address={self._address!r}: {_STRANGERS}")
        member = member_of(self._session)
        self._use(self._address, self._name, member.run_id)
        try:
            self._name = self._ask("greet", proof_of(bytes(self._authkey), self._address))
        except BaseException:
            self._run_id = ""
            raise

    def get_server(self) -> Server:
        """Return a stand-in for the standard library's server, for programs that look for a free port before `start`.

        Raises:
            ValueError: the address is not one with port 0, so strangers would have to be served.
            ProcessError: the manager was started already, or has been shut down.
        """
        self._check_initial()
        if not _leaves_port_open(self._address):  # early: `serve_forever` would raise in a user's thread
            raise ValueError(f"address={self._address!r}: a server would serve strangers, and {_STRANGERS}")
        return Server(self._address)

    def shutdown(self) -> None:
        """End the manager's process and all its objects; may be called twice.

        Raises:
            AttributeError: this process has not started the manager.
        """
        if self._end is None or self._process is None:
            raise AttributeError("shutdown() is for the process that has started a manager, after start()")
        if self._end.detach():
            self._process.stop(self._shutdown_timeout)

    def join(self, timeout: float | None = None) -> None:
        """Wait until the manager's process has ended, at most `timeout` seconds, if this process has started it."""
        if self._process:
            self._process.join(timeout)

    @property
    def address(self) -> Any:
        """The address of the manager, reachable from within its run."""
        return self._address

    def __enter__(self) -> Self:
        if self._state is State.INITIAL:
            self.start()
        if self._state is State.SHUTDOWN:
            raise ProcessError("Manager has shut down")
        return self

    def __exit__(self, *exc: object) -> None:
        self.shutdown()

    def __reduce__(self) -> Any:
        self._check_started()
        return _connected, (type(self), self._address, self._name, self._run_id, self._serializer)

    def _use(self, address: str, name: str, run_id: str) -> None:
        self._address, self._name, self._run_id = address, name, run_id

    @property
    def _state(self) -> State:
        if self._process and self._process.told_to_end:
            return State.SHUTDOWN
        return State.STARTED if self._run_id else State.INITIAL

    def _create(self, typeid: str, /, *args: Any, **kwds: Any) -> tuple[Token, tuple[str, ...]]:
        """Make an object; returns its token and the methods that it exposes."""
        self._check_started()
        target, exposed = self._ask("create", typeid, args, kwds)
        return Token(typeid, self._address, f"{target:x}", self._run_id, self._name, fresh=True), exposed

    def _number_of_objects(self) -> int:
        """Return the number of the manager's objects that are referred to."""
        return self._ask("num_objects")

    def _debug_info(self) -> str:
        """Return a description of the manager's objects and of the processes that refer to them."""
        return self._ask("describe")

    def _ask(self, method: str, *args: Any) -> Any:
        """Call a method of the manager itself."""
        self._check_started()
        reference = ObjectLocation(self._run_id, self._address, CABINET_TARGET, f"manager {self._name}")
        return ObjectCalls(reference, self._name).call(facts_of(method), args, {})

    def _check_initial(self) -> None:
        if self._state is State.STARTED:
            raise ProcessError("Already started server")
        if self._state is State.SHUTDOWN:
            raise ProcessError("Manager has shut down")

    def _check_started(self) -> None:
        assert self._state is not State.INITIAL, "server not yet started"
        assert self._state is not State.SHUTDOWN, "the manager has been shut down"


class Server:
    """The object that `get_server` returns; managers of Ropewalk are served by processes of their own.

    Args:
        address: the address given to the manager.
    """

    def __init__(self, address: Any) -> None:
        self.address = address
        self.listener = self

    def __repr__(self) -> str:
        return f"<Server {self.address!r}>"

    def serve_forever(self) -> None:
        """Raise, because managers of Ropewalk are not served this way.

        Raises:
            ProcessError: always; the message says what to do instead.
        """
        raise ProcessError(f"serve_forever() would serve strangers, and {_STRANGERS}")

    def close(self) -> None:
        """Do nothing: no socket is open."""


class SyncManager(BaseManager):
    """A manager with lists, dictionaries, queues, locks and the like; `Manager()` returns a started one."""

    def Queue(self, maxsize: int = 0) -> managed.ManagedQueue:
        """Make a queue with `task_done` and `join`."""
        return self._keep(managed.ManagedQueue, "queue", (maxsize, True), _maxsize=maxsize)

    def JoinableQueue(self, maxsize: int = 0) -> managed.ManagedQueue:
        """Make a queue, as `Queue` does."""
        return self.Queue(maxsize)

    def Lock(self) -> managed.ManagedLock:
        """Make a lock, which becomes free when its holder dies."""
        return self._keep(managed.ManagedLock, "lock", (False,))

    def RLock(self) -> managed.ManagedRLock:
        """Make a lock that its owner may acquire again."""
        return self._keep(managed.ManagedRLock, "lock", (True,))

    def Semaphore(self, value: int = 1) -> managed.ManagedSemaphore:
        """Make a semaphore: a counter that `acquire` decrements."""
        return self._keep(managed.ManagedSemaphore, "semaphore", (value, None))

    def BoundedSemaphore(self, value: int = 1) -> managed.ManagedBoundedSemaphore:
        """Make a semaphore that cannot be released more often than acquired."""
        return self._keep(managed.ManagedBoundedSemaphore, "semaphore", (value, value), _bound=value)

    def Condition(self, lock: managed.ManagedLock | None = None) -> managed.ManagedCondition:
        """Make a condition, over a lock of this manager.

        Args:
            lock: the lock that it releases and acquires again; a new RLock by default.

        Raises:
            TypeError: the lock is not one of this manager.
        """
        lock = self.RLock() if lock is None else lock
        reference = lock._reference if isinstance(lock, managed.ManagedLock) else None  # pyright: ignore
        if reference is None or reference.address != self._address:
            raise TypeError(f"a condition of a manager needs a Lock or RLock of the same manager, not {lock!r}")
        return self._keep(managed.ManagedCondition, "condition", (reference.target,), _lock=lock)

    def Event(self) -> managed.ManagedEvent:
        """Make an event: a flag that threads and processes wait for."""
        return self._keep(managed.ManagedEvent, "event", ())

    def Barrier(
        self, parties: int, action: Callable[[], object] | None = None, timeout: float | None = None
    ) -> managed.ManagedBarrier:
        """Make a barrier for a number of parties; the action runs in the party that comes last."""
        return self._keep(
            managed.ManagedBarrier, "barrier", (parties,), _parties=parties, _action=action, _timeout=timeout
        )

    def _keep(self, handle: Any, kind: str, args: tuple[Any, ...], **facts: Any) -> Any:
        """Make one of our own shared objects, kept by the manager."""
        self._check_started()
        label = f"{handle.__name__} of {self._name}"
        (reference,) = create_at(member_of_run(self._run_id), self._address, kind, *args, label=label)
        made: SharedObject = handle.at(reference, *facts.values()) if kind == "queue" else handle.at(reference, **facts)
        made.__dict__["_manager"] = self  # keeps the manager alive; not sent with the handle
        return made

    if TYPE_CHECKING:  # the types registered below, for type checkers

        def Namespace(self, **kwds: Any) -> proxy_types.NamespaceProxy: ...
        def Value(self, typecode: Any, value: Any, lock: bool = True) -> proxy_types.ValueProxy: ...
        def Array(self, typecode: Any, sequence: Iterable[Any], lock: bool = True) -> proxy_types.ArrayProxy: ...
        def Pool(self, *args: Any, **kwds: Any) -> proxy_types.PoolProxy: ...
        def dict(self, *args: Any, **kwds: Any) -> proxy_types.DictProxy: ...
        def list(self, *args: Any) -> proxy_types.ListProxy: ...


SyncManager.register("list", list, proxy_types.ListProxy)
SyncManager.register("dict", dict, proxy_types.DictProxy)
SyncManager.register("Value", Value, proxy_types.ValueProxy)
SyncManager.register("Array", Array, proxy_types.ArrayProxy)
SyncManager.register("Namespace", Namespace, proxy_types.NamespaceProxy)
SyncManager.register("Pool", Pool, proxy_types.PoolProxy)
SyncManager.register("Iterator", proxytype=proxy_types.IteratorProxy, create_method=False)
SyncManager.register("AsyncResult", create_method=False)


# Named as in the standard library.
def Manager(*, engine: str | None = None, session: Session | None = None) -> SyncManager:
    """Return a started `SyncManager`.

    Example:
        >>> import ropewalk as rw
        >>> with rw.Manager() as manager:
        ...     scores = manager.dict(best=0.5)
        ...     process = rw.Process(target=scores.update, args=({"best": 0.75},))
        ...     process.start()
        ...     process.join()
        ...     print(scores.copy())
        {'best': 0.75}

    Args:
        engine: where its process runs; the setting `engine` by default.
        session: a session to share, instead.
    """
    manager = SyncManager(engine=engine, session=session)
    manager.start()
    return manager


def _leaves_port_open(address: Any) -> bool:
    """Whether an address only asks for a port to be chosen."""
    return isinstance(address, tuple) and cast("Any", address[1:]) == (0,)


def _is_ours(address: Any) -> bool:
    """Whether an address may be one that a manager has chosen."""
    with contextlib.suppress(ValueError):
        return isinstance(address, str) and bool(parse_address(address))
    return False


def _connected(kind: type[BaseManager], address: str, name: str, run_id: str, serializer: str) -> BaseManager:
    """Rebuild a manager that was sent; the receiver needs no key."""
    made = kind(serializer=serializer)
    made._use(address, name, run_id)  # pyright: ignore[reportPrivateUsage]
    return made


__all__ = [
    "Array",
    "AutoProxy",
    "BaseManager",
    "BaseProxy",
    "MakeProxyType",
    "Manager",
    "Namespace",
    "RemoteError",
    "SharedMemoryManager",
    "SyncManager",
    "Token",
    "Value",
]
