"""The libraries whose calls are measured, behind four verbs: connect, call, start a call, start client processes.

An adapter adds as little as it can: what `method` returns is the library's own callable wherever there is one, looked
up once. All serve one `callee.Target` in one process, listen on a unix socket where they can choose, and start their
processes with `spawn`, so that none inherits what another has imported.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import multiprocessing
import multiprocessing.managers
import os
import pickle
import signal
import socket
import tempfile
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import bare_calls
from callee import METHODS, Control, Target, drive

SPAWN = multiprocessing.get_context("spawn")
NUM_THREADS = 40
"""Of servers that have a fixed number: more than there are callers in any row."""


class Future(Protocol):
    def result(self) -> Any: ...


class Client(Protocol):
    """A client for use by one thread."""

    def method(self, name: str) -> Callable[..., Any]: ...

    def futures(self, name: str) -> Callable[..., Future] | None:
        """Starts a call and returns at once; None where the library cannot."""
        ...

    def close(self) -> None: ...


class Contender(Protocol):
    """A process that serves a Target, started."""

    def client(self) -> Client: ...

    def start_clients(self, control: Control) -> None:
        """Starts processes that `drive` empty calls, each with a client of its own."""
        ...

    def close(self) -> None: ...


# ---------------------------------------------------------------- bare socket


class Bare:
    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.path = f"{self.folder.name}/bare"
        self.clients: list[Any] = []
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self.path)
            listener.listen(128)
            self.server = SPAWN.Process(target=bare_calls.serve, args=(listener, Target()), daemon=True)
            self.server.start()

    def client(self) -> Client:
        return bare_calls.BareClient(self.path)

    def start_clients(self, control: Control) -> None:
        self.clients += started(control, bare_calls.BareClient, self.path)

    def close(self) -> None:
        end(self.server, *self.clients)
        self.folder.cleanup()


def started(control: Control, connect: Callable[..., Client], *address: Any) -> list[Any]:
    processes = [
        SPAWN.Process(target=drive_from, args=(control.path, connect, address), daemon=True)
        for _ in range(control.num_clients)
    ]
    for process in processes:
        process.start()
    return processes


def drive_from(control: str, connect: Callable[..., Client], address: Sequence[Any]) -> None:
    drive(control, connect(*address).method("empty"))


def end(*processes: Any) -> None:
    for process in processes:
        process.kill()
        process.join()


# ---------------------------------------------------------------- multiprocessing.managers


class TargetManager(multiprocessing.managers.BaseManager):
    """Serves one Target to everybody who asks."""


@functools.cache
def the_target() -> Target:
    return Target()


TargetManager.register("target", callable=the_target, exposed=METHODS)


class ManagerClient:
    def __init__(self, address: Any, key: bytes) -> None:
        # A proxy authenticates its own connection with the key of the process that uses it.
        multiprocessing.current_process().authkey = key
        manager = TargetManager(address, key)
        manager.connect()
        self.proxy: Any = manager.target()  # type: ignore[attr-defined]

    def method(self, name: str) -> Callable[..., Any]:
        return getattr(self.proxy, name)

    def futures(self, name: str) -> None:
        return None

    def close(self) -> None:
        del self.proxy


class Managers:
    def __init__(self) -> None:
        self.key = bytes(multiprocessing.current_process().authkey)
        self.manager = TargetManager(authkey=self.key, ctx=SPAWN)
        self.manager.start()
        self.clients: list[Any] = []

    def client(self) -> Client:
        return ManagerClient(self.manager.address, self.key)

    def start_clients(self, control: Control) -> None:
        self.clients += started(control, ManagerClient, self.manager.address, self.key)

    def close(self) -> None:
        end(*self.clients)
        self.manager.shutdown()


# ---------------------------------------------------------------- gRPC


UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


def serve_grpc(address: str) -> None:
    grpc = importlib.import_module("grpc")
    target = Target()

    class Handler(grpc.GenericRpcHandler):
        def service(self, handler_call_details: Any) -> Any:
            method = getattr(target, handler_call_details.method.rpartition("/")[2])
            # What it unpickles, it has pickled itself.
            return grpc.unary_unary_rpc_method_handler(
                lambda request, _: pickle.dumps(method(*pickle.loads(request)), 5)  # noqa: S301
            )

    server = grpc.server(ThreadPoolExecutor(NUM_THREADS), handlers=(Handler(),), options=UNLIMITED)
    server.add_insecure_port(address)
    server.start()
    signal.pause()


class GrpcFuture:
    __slots__ = ("call",)

    def __init__(self, call: Any) -> None:
        self.call = call

    def result(self) -> Any:
        return pickle.loads(self.call.result())  # noqa: S301


class GrpcClient:
    def __init__(self, address: str) -> None:
        grpc = importlib.import_module("grpc")
        self.channel = grpc.insecure_channel(address, options=UNLIMITED)
        grpc.channel_ready_future(self.channel).result(30)

    def method(self, name: str) -> Callable[..., Any]:
        stub = self.channel.unary_unary(f"/target/{name}")
        return lambda *arguments: pickle.loads(stub(pickle.dumps(arguments, 5)))  # noqa: S301

    def futures(self, name: str) -> Callable[..., Future]:
        stub = self.channel.unary_unary(f"/target/{name}")
        return lambda *arguments: GrpcFuture(stub.future(pickle.dumps(arguments, 5)))

    def close(self) -> None:
        self.channel.close()


class Grpc:
    """Bytes in, bytes out (a generic handler, no protobuf), pickled as for the bare socket."""

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.address = f"unix:{self.folder.name}/grpc"
        self.server = SPAWN.Process(target=serve_grpc, args=(self.address,), daemon=True)
        self.server.start()
        self.clients: list[Any] = []

    def client(self) -> Client:
        return GrpcClient(self.address)

    def start_clients(self, control: Control) -> None:
        self.clients += started(control, GrpcClient, self.address)

    def close(self) -> None:
        end(self.server, *self.clients)
        self.folder.cleanup()


# ---------------------------------------------------------------- Ray


class RayFuture:
    __slots__ = ("get", "reference")

    def __init__(self, get: Callable[[Any], Any], reference: Any) -> None:
        self.get = get
        self.reference = reference

    def result(self) -> Any:
        return self.get(self.reference)


class RayClient:
    def __init__(self, actor: Any) -> None:
        self.actor = actor
        self.get = importlib.import_module("ray").get

    def method(self, name: str) -> Callable[..., Any]:
        remote, get = getattr(self.actor, name).remote, self.get
        return lambda *arguments: get(remote(*arguments))

    def futures(self, name: str) -> Callable[..., Future]:
        remote, get = getattr(self.actor, name).remote, self.get
        return lambda *arguments: RayFuture(get, remote(*arguments))

    def close(self) -> None:
        pass


class RayDriver:
    """An actor that is a client."""

    def drive(self, control: str, actor: Any) -> None:
        drive(control, RayClient(actor).method("empty"))


class Ray:
    """An actor with its defaults, one call at a time; only `quick` has a concurrency group, so no sleep holds it up."""

    def __init__(self) -> None:
        self.ray = importlib.import_module("ray")
        if not self.ray.is_initialized():
            here = os.path.dirname(os.path.abspath(__file__))
            self.ray.init(
                num_cpus=len(os.sched_getaffinity(0)),
                log_to_driver=False,
                include_dashboard=False,
                runtime_env={"env_vars": {"PYTHONPATH": here}},
            )
        quick = self.ray.method(concurrency_group="quick")(Target.quick)
        served = type("RayTarget", (Target,), {"quick": quick, "__module__": __name__})
        self.actor: Any = self.ray.remote(num_cpus=0, concurrency_groups={"quick": 2})(served).remote()
        self.ray.get(self.actor.empty.remote())
        self.drivers: list[Any] = []

    def client(self) -> Client:
        return RayClient(self.actor)

    def start_clients(self, control: Control) -> None:
        make = self.ray.remote(num_cpus=0)(RayDriver)
        self.drivers += [make.remote() for _ in range(control.num_clients)]
        for driver in self.drivers:
            driver.drive.remote(control.path, self.actor)

    def close(self) -> None:
        for actor in (self.actor, *self.drivers):
            self.ray.kill(actor)


# ---------------------------------------------------------------- all of them


def ropewalk() -> Contender:
    return importlib.import_module("call_subject").Ropewalk()


LIBRARIES: dict[str, tuple[str, Callable[[], Contender]]] = {
    "bare": ("", Bare),
    "managers": ("", Managers),
    "grpc": ("grpc", Grpc),
    "ray": ("ray", Ray),
    "ropewalk": ("ropewalk", ropewalk),
}
"""By name: the module it needs, and how to start it."""


@functools.cache
def is_installed(name: str) -> bool:
    module = LIBRARIES[name][0]
    return not module or importlib.util.find_spec(module) is not None


@contextmanager
def opened(names: Sequence[str]) -> Generator[dict[str, Contender]]:
    """All named contenders that are installed, started, with a first call answered."""
    with ExitStack() as stack:
        running: dict[str, Contender] = {}
        for name, (_, start) in LIBRARIES.items():
            if name in names and is_installed(name):
                running[name] = start()
                stack.callback(running[name].close)
                client = running[name].client()
                client.method("empty")()
                client.close()
        yield running
