"""Clients: what a handle becomes inside a node.

    ps.push(grad)            blocks, returns what the method returned or raises what it raised
    ps.push.future(grad)     a concurrent.futures.Future
    await ps.push.aio(grad)  for asyncio
    ps.push.send(grad)       does not wait, and does not learn of failures
    for x in ps.batches():   a method that is a generator streams
    ps.all.push(grad)        calls every replica, returns a list; ps.any calls one of them; ps[2] that one

A client without a link to its service finds the service through the directory, so it follows a service that was
restarted elsewhere.

From one process to another, at most 1024 calls without a waiting thread (`future`, `send`) are under way
(`MAX_IN_FLIGHT`); a further call waits, which slows callers down to the speed of the service. The limit counts
calls, not bytes: a caller that sends arguments of 10 MB without waiting for answers may have 10 GB of them under
way.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from ropewalk.calls.call_count import CallCount
from ropewalk.calls.caller import Caller
from ropewalk.calls.markers import MethodFacts
from ropewalk.calls.remote_method import MethodOfAll, RemoteMethod
from ropewalk.calls.replica import ReplicaClient
from ropewalk.near_names import instead_of
from ropewalk.quantities import counted

CLIENT_NAMES = ("all", "any")
"""Public attributes of clients themselves, which cannot be names of methods."""


class Client:
    """A service, as its callers see it: its methods can be called from here.

    Attributes:
        all: a client that calls every replica at once; results are lists.
        any: a client that calls one replica, chosen at each call: the one with the fewest calls of this process under
            way.
    """

    def __init__(
        self,
        caller: Caller,
        name: str,
        address: int | str,
        methods: Mapping[str, MethodFacts],
        *,
        retries: bool = False,
        count: CallCount | None = None,
    ) -> None:
        self._caller = caller
        self._count = count or CallCount()
        self._retries = retries
        self._name = name
        self._address = address
        self._methods = methods
        self._replicas: dict[int, ReplicaClient] = {}
        self._turns = itertools.count(1)

    @property
    def all(self) -> Client:
        return self._at("all")

    @property
    def any(self) -> Client:
        return self._at("any")

    def __getitem__(self, replica: int) -> Client:
        if not hasattr(replica, "__index__"):
            raise TypeError(f"a replica of {self._name} is chosen by its number, not by {replica!r}")
        num = len(self)
        if not -num <= replica < num:
            raise IndexError(f"{self._name} has {counted(num, 'replica')}; there is no number {replica}")
        return self._at(replica % num)

    def __len__(self) -> int:
        return self._caller.directory.replicas(self._name)

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Client]:
        return (self._at(index) for index in range(len(self)))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") and name != "__call__":  # not a method, and perhaps looked up before there is a table
            raise AttributeError(
                f"{name}: names that begin with an underscore are private, and cannot be called from here"
            )
        facts = self._methods.get(name)
        if facts is None:
            why = (
                "`run` is the service's own work, which it begins by itself; give a method for others another name"
                if name == "run"
                else "only methods can be called: no attributes, properties or async functions"
            )
            raise AttributeError(
                f"{self._name} has no method {name!r}{instead_of(name, self._methods, 'it has')}. ({why})"
            )
        if self._address == "all":
            made: Any = MethodOfAll(facts, self._all_replicas)
        elif isinstance(self._address, int):
            replica = self._replica(self._address)
            made = RemoteMethod(facts, lambda: replica)
        else:
            made = RemoteMethod(facts, self._choose)
        self.__dict__[name] = made
        return made

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_"):
            raise AttributeError(
                f"{self._name} is a client: setting its {name!r} would not reach the service; write a method for it"
            )
        object.__setattr__(self, name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__getattr__("__call__")(*args, **kwargs)

    def __dir__(self) -> list[str]:
        return [*CLIENT_NAMES, *self._methods]

    def __repr__(self) -> str:
        address = "" if self._address == "any" else f", {self._address!r}"
        return f"<client of {self._name}{address}>"

    def __reduce__(self) -> Any:
        raise TypeError(f"{self!r} cannot be sent: {why_not_sent(self)}")

    def _at(self, address: int | str) -> Client:
        client = Client(self._caller, self._name, address, self._methods, retries=self._retries, count=self._count)
        client._replicas, client._turns = self._replicas, self._turns
        return client

    def _replica(self, index: int) -> ReplicaClient:
        replica = self._replicas.get(index)
        if replica is None:
            made = ReplicaClient(self._caller, self._name, index, retries=self._retries, count=self._count)
            replica = self._replicas.setdefault(index, made)
        return replica

    def _all_replicas(self) -> list[ReplicaClient]:
        return [self._replica(index) for index in range(len(self))]

    def _choose(self) -> ReplicaClient:
        num = self._caller.directory.replicas(self._name)
        if num <= 1:
            return self._replicas.get(0) or self._replica(0)
        replicas = self._all_replicas()
        turn = next(self._turns) % num
        # Equal replicas are chosen in turn; one that is not up is chosen only if no other is up.
        order = replicas[turn:] + replicas[:turn]
        return min(order, key=lambda replica: (not replica.is_up, replica.num_pending))


def why_not_sent(client: Client) -> str:
    """The reason why a client cannot be an argument, and what can be."""
    name = client._name  # pyright: ignore[reportPrivateUsage]  # public names are those of the user's methods
    return (
        f"it belongs to the process that has it. Give the handle of {name!r}, which program.add(...) returned, to the "
        "node that is to call it when the program is built; there it arrives as a client"
    )
