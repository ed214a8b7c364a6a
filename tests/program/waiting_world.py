"""Services whose calls wait for each other, as a test moves them; it knows which of them can go on."""

from __future__ import annotations

import dataclasses
import itertools

from ropewalk.calls.waits import LaneWaits, RunningCall, WaitingCall


@dataclasses.dataclass(eq=False)
class Call:
    """A call at a service."""

    key: int
    at: str
    number: int
    caller: Call | None
    waits_for: Call | None = None

    @property
    def label(self) -> str:
        return f"{self.at}.m{self.key}"


@dataclasses.dataclass
class Service:
    """An object in a process of its own; its name is the address."""

    limit: int
    running: list[Call] = dataclasses.field(default_factory=list[Call])
    waiting: list[Call] = dataclasses.field(default_factory=list[Call])


class World:
    """All services of a program."""

    def __init__(self, **limits: int) -> None:
        self.services = {name: Service(limit) for name, limit in limits.items()}
        self._keys = itertools.count(1)
        self.time = 0

    def call(self, at: str, caller: Call | None = None) -> Call:
        """A call comes; whoever made it waits for it."""
        self.time += 1
        key = next(self._keys)
        call = Call(key, at, key, caller)
        service = self.services[at]
        if caller:
            caller.waits_for = call
        above = caller
        while above and above not in service.running:
            above = above.caller
        if above or len(service.running) < service.limit:  # its own chain has the turn, or there is one
            service.running.append(call)
        else:
            service.waiting.append(call)
        return call

    def finish(self, call: Call) -> None:
        """A call returns."""
        self.time += 1
        assert call.waits_for is None
        service = self.services[call.at]
        service.running.remove(call)
        if call.caller:
            call.caller.waits_for = None
        if service.waiting and len(service.running) < service.limit:
            service.running.append(service.waiting.pop(0))

    def end(self, key: int, at: str) -> bool:
        """A call that waits for its turn is ended; its caller goes on."""
        service = self.services[at]
        for call in service.waiting:
            if call.key == key:
                service.waiting.remove(call)
                if call.caller:
                    call.caller.waits_for = None
                return True
        return False

    @property
    def active(self) -> list[Call]:
        """Calls that run and wait for nothing."""
        return [call for service in self.services.values() for call in service.running if call.waits_for is None]

    def report(self, name: str) -> list[LaneWaits]:
        """What the process of a service says."""
        service = self.services[name]

        def asked(call: Call) -> tuple[int, int]:
            return (call.caller.key if call.caller else 0), call.number

        running = [
            RunningCall(call.key, call.label, [asked(call)], call.waits_for.at, call.waits_for.number)
            for call in service.running
            if call.waits_for
        ]
        waiting = [WaitingCall(call.key, call.label, asked(call), 1.0 / call.key) for call in service.waiting]
        return [LaneWaits(1, service.limit, running, waiting)] if running else []

    def reports(self) -> dict[str, list[LaneWaits]]:
        return {name: self.report(name) for name in self.services}

    def never_go_on(self) -> set[int]:
        """The keys of the calls that are still there when all that can return has returned."""
        services = {name: (list(each.running), list(each.waiting), each.limit) for name, each in self.services.items()}
        blocked = {call.key for running, _, _ in services.values() for call in running if call.waits_for}
        goes_on = True
        while goes_on:
            goes_on = False
            for running, waiting, limit in services.values():
                for call in [each for each in running if each.key not in blocked]:
                    goes_on = True
                    running.remove(call)
                    if call.caller:
                        blocked.discard(call.caller.key)
                    if waiting and len(running) < limit:
                        running.append(waiting.pop(0))
        return {call.key for running, waiting, _ in services.values() for call in (*running, *waiting)}
