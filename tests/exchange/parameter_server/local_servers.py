"""Servers in this process that can be killed between any two words, and come back with or without a state."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from ropewalk.exchange.parameter_server.service import ParameterShard
from tests.patience import PATIENCE_S


class LocalShard:
    """What a client of one shard is: every method may be repeated, so a call whose answer is lost is made again."""

    def __init__(self) -> None:
        self._served = ParameterShard()
        self._state: bytes | None = None
        self._order, self._waiting = ThreadPoolExecutor(1), ThreadPoolExecutor()
        self.change: Callable[[str, tuple[Any, ...]], tuple[Any, ...]] = lambda _name, args: args
        """May damage what is sent."""

    def save(self) -> None:
        self._state = pickle.dumps(self._served.state_dict())

    def kill(self) -> None:
        """Begin anew, from the state that was saved last if there is one."""
        served = ParameterShard()
        if self._state is not None:
            served.load_state_dict(pickle.loads(self._state))
        self._served = served

    def forget(self) -> None:
        """Begin anew with nothing."""
        self._state = None
        self.kill()

    def close(self) -> None:
        self._order.shutdown()
        self._waiting.shutdown()

    def __getattr__(self, name: str) -> _Method:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Method(self, name)

    def call(self, name: str, args: tuple[Any, ...]) -> Any:
        while True:
            served = self._served
            answer = getattr(served, name)(*pickle.loads(pickle.dumps(self.change(name, args))))
            if served is self._served:
                return pickle.loads(pickle.dumps(answer))

    def later(self, name: str, args: tuple[Any, ...]) -> Future[Any]:
        return (self._waiting if name == "pull" else self._order).submit(self.call, name, args)


class _Method:
    def __init__(self, shard: LocalShard, name: str) -> None:
        self._shard, self._name = shard, name

    def __call__(self, *args: Any) -> Any:
        return self._shard.call(self._name, args)

    def future(self, *args: Any) -> Future[Any]:
        return self._shard.later(self._name, args)


class LocalServers(list[LocalShard]):
    """What a client of all shards is."""

    def __init__(self, num_shards: int) -> None:
        super().__init__(LocalShard() for _ in range(num_shards))

    def __enter__(self) -> LocalServers:
        return self

    def __exit__(self, *exc: object) -> None:
        for shard in self:
            shard.close()


class HeldShard:
    """Takes pushes, and answers them when the test says so; for a look at their order."""

    def __init__(self) -> None:
        self.pushed: list[tuple[int, Future[Any]]] = []
        self.news = threading.Condition()

    @property
    def push(self) -> HeldShard:
        return self

    def future(self, _worker: str, _epoch: int, _step: int, key: int, _data: bytes, _samples: float) -> Future[Any]:
        future: Future[Any] = Future()
        with self.news:
            self.pushed.append((key, future))
            self.news.notify_all()
        return future

    def wait_for(self, num_pushed: int) -> list[int]:
        with self.news:
            assert self.news.wait_for(lambda: len(self.pushed) >= num_pushed, PATIENCE_S)
            return [key for key, _ in self.pushed]
