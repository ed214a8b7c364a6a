"""Types that the tests register with managers, and functions that use their proxies in other processes."""

from __future__ import annotations

import gc
import os
import threading
import time
from typing import Any

from ropewalk.managers import BaseManager, BaseProxy, SyncManager

settings: dict[str, Any] = {}


class Simulator:
    """Steps slowly, as simulators do."""

    def __init__(self, step_s: float = 0.0) -> None:
        self.total = 0
        self._step_s = step_s

    def step(self, action: int) -> int:
        time.sleep(self._step_s)
        self.total += action
        return self.total

    def pid(self) -> int:
        return os.getpid()

    def say(self, words: str) -> None:
        print(words)

    def fail(self, *facts: object) -> None:
        raise SimulatorBroken(*facts)

    def lock(self) -> Any:
        return threading.Lock()

    def _hidden(self) -> str:
        return "hidden"


class SimulatorBroken(ValueError):
    """An exception of the user's own."""


class Unrebuildable(Exception):
    """An exception that cannot be rebuilt from its args."""

    def __init__(self, one: object, two: object) -> None:
        super().__init__(one)

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), self.args  # one argument, and `__init__` wants two


class Tree:
    """Has branches that are trees of the same manager."""

    def __init__(self, name: str = "root") -> None:
        self.name = name

    def branch(self, name: str) -> Tree:
        return Tree(f"{self.name}/{name}")

    def path(self) -> str:
        return self.name

    def raise_unrebuildable(self) -> None:
        raise Unrebuildable(1, 2)


class Reader:
    """Uses what it is given: a proxy of its own manager, in the manager's process."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def first(self) -> Any:
        return self.source[0]

    def append(self, value: object) -> int:
        self.source.append(value)
        return len(self.source)


class SimulatorManager(BaseManager):
    """Keeps simulators."""


SimulatorManager.register("Simulator", Simulator)
SimulatorManager.register("Half", Simulator, exposed=("step", "_hidden"))
SimulatorManager.register("Tree", Tree, method_to_typeid={"branch": "Branch"})
SimulatorManager.register("Branch", method_to_typeid={"branch": "Branch"}, create_method=False)


class ReaderManager(SyncManager):
    """Keeps readers, and all that every manager keeps."""


ReaderManager.register("Reader", Reader)
ReaderManager.register("collect", gc.collect)


class CounterProxy(BaseProxy):
    """A proxy type of the user's own."""

    _exposed_ = ("step",)

    def step(self, action: int = 1) -> Any:
        return self._callmethod("step", (action,))


class CounterManager(SimulatorManager):
    """Inherits what its base has registered, and has a type more."""


CounterManager.register("Counter", Simulator, CounterProxy)


def remember(name: str, value: object) -> None:
    settings[name] = value


def setting(name: str) -> Any:
    return settings[name]


class SettingsManager(BaseManager):
    """Shows what its initializer has done."""


SettingsManager.register("setting", setting)


def refuse() -> None:
    raise OSError("no licence for the simulator")


def step_and_put(simulator: Any, results: Any) -> None:
    results.append((os.getpid(), simulator.step(1)))


def hold_and_wait(proxy: Any, pids: Any) -> None:
    pids.append(os.getpid())
    time.sleep(60)
    proxy.step(0)


def connect_and_step(address: str, authkey: bytes) -> int:
    manager: Any = SimulatorManager(address=address, authkey=authkey)
    manager.connect()
    return manager.Simulator().step(5)


def make_and_step(manager: Any) -> int:
    return manager.Simulator().step(7)


def start_and_wait(pids: Any) -> None:
    manager = SimulatorManager()
    manager.start()
    assert manager._process
    pids.append((os.getpid(), manager._process.pid))
    time.sleep(60)
