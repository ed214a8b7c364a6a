"""`Isolated`: environments in processes of their own, which may hang or crash without harm to the actor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.pool import RemoteTraceback  # type: ignore[attr-defined]
from typing import Any, cast

import gymnasium

from ropewalk.compat.process import Process
from ropewalk.compat.process_popen import Popen
from ropewalk.control.process_stacks import of_output, parse
from ropewalk.errors import EnvironmentLost
from ropewalk.rl.environments.failures import check_on_error
from ropewalk.rl.environments.gymnasium_env import GymnasiumEnv
from ropewalk.rl.environments.isolated_process import (
    EnvironmentDone,
    EnvironmentRaised,
    EnvironmentRequest,
    serve_environment,
)
from ropewalk.rl.environments.mistakes import check_takes_a_seed
from ropewalk.sharing.connections import Pipe

_STACKS_S = 0.2
"""Time that a process gets to print its stacks before it is killed, in seconds."""
_END_S = 5.0
"""Time that an environment gets for its `close`, and that a death gets to be reported, in seconds."""


@dataclass(frozen=True, slots=True)
class Isolated:
    """Makes environments that run in processes of their own: a factory for experiments.

        Isolated(Gymnasium("MySimulator-v0"), step_timeout_s=10)

    A step takes some 50 us of this process's time and 0.5 ms in all, so that only environments that can hang or crash
    should be isolated.

    Args:
        factory: makes the environment, in its process.
        step_timeout_s: seconds that a step or a reset may take. Then the process prints the stacks of its threads and
            is killed.
        start_timeout_s: seconds that the start of the process and the factory may take.
        on_error: what happens to an episode whose environment is lost or raises: "truncate" cuts it and starts a new
            process, "raise" raises the error. See `SerialVectorEnvironment`.

    Raises:
        TypeError: the factory cannot be called with a seed.
        ValueError: a time is not positive, or `on_error` is something else.
    """

    factory: Callable[[int], GymnasiumEnv]
    step_timeout_s: float = 60.0
    start_timeout_s: float = 120.0
    on_error: str = "truncate"

    def __post_init__(self) -> None:
        check_on_error(self.on_error)
        check_takes_a_seed(self.factory)
        for name in ("step_timeout_s", "start_timeout_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it is more than 0 seconds")

    def __call__(self, seed: int) -> IsolatedEnvironment:
        """Start the process of one environment; its factory gets the seed."""
        return IsolatedEnvironment(
            self.factory, seed, step_timeout_s=self.step_timeout_s, start_timeout_s=self.start_timeout_s
        )


class IsolatedEnvironment(gymnasium.Env[Any, Any]):
    """An environment in a process of its own, which is started here and ends with this process.

    It does not wait for its process until it needs it, so that several start side by side. When the process is lost,
    each method raises `EnvironmentLost`: make another one.

    Args:
        factory: makes the environment, in its process.
        seed: seed for the factory.
        step_timeout_s: seconds that a step or a reset may take.
        start_timeout_s: seconds that the start of the process and the factory may take.

    Raises:
        StartFailed: no process can be started.
    """

    def __init__(
        self,
        factory: Callable[[int], GymnasiumEnv],
        seed: int,
        *,
        step_timeout_s: float = 60.0,
        start_timeout_s: float = 120.0,
    ) -> None:
        self._step_timeout_s, self._start_timeout_s = step_timeout_s, start_timeout_s
        self._spaces: tuple[Any, Any] | None = None
        self._episode_seed: int | None = None
        self._num_steps = 0
        self._lost: EnvironmentLost | None = None
        self._is_open = True
        self._connection, far = Pipe()
        self._process = EnvironmentProcess(
            target=serve_environment, args=(far, factory, seed), name="environment", daemon=True
        )
        self._process.start()
        far.close()

    @property
    def observation_space(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]  # known only to the process
        """The space of observations."""
        return self._started()[0]

    @property
    def action_space(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]  # known only to the process
        """The space of actions."""
        return self._started()[1]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """See `gymnasium.Env`.

        Raises:
            EnvironmentLost: the process died, or did not answer in time.
        """
        self._started()
        self._episode_seed, self._num_steps = seed, 0
        return self._asked("reset", seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """See `gymnasium.Env`.

        Raises:
            EnvironmentLost: the process died, or did not answer in time.
        """
        self._num_steps += 1
        return self._asked("step", action)

    def render(self) -> Any:
        """See `gymnasium.Env`."""
        self._started()
        return self._asked("render")

    def close(self) -> None:
        """Close the environment and end its process, after 5 s by killing it; may be called twice."""
        if not self._is_open:
            return
        self._is_open = False
        self._connection.close()
        self._process.join(_END_S)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
        self._process.close()

    def _started(self) -> tuple[Any, Any]:
        spaces = self._spaces or self._answer(self._start_timeout_s, "the start")
        self._spaces = spaces
        return spaces

    def _asked(self, method: str, *arguments: Any, **named: Any) -> Any:
        self._check()
        what = f"step {self._num_steps}" if method == "step" else method
        try:
            self._connection.send(EnvironmentRequest(method, arguments, named))
        except OSError:  # the process died between two steps
            raise self._died(what) from None
        return self._answer(self._step_timeout_s, what)

    def _answer(self, timeout_s: float, what: str) -> Any:
        self._check()
        answer: EnvironmentDone | EnvironmentRaised | None = None
        try:
            if self._connection.poll(timeout_s):
                answer = self._connection.recv()
        except (EOFError, OSError):
            raise self._died(what) from None
        except BaseException:  # such as KeyboardInterrupt: the answer would be taken for that to the next request
            self._process.kill()
            self._loss(f"{self._place(what)} was interrupted here, and its process was killed")
            raise
        if answer is None:
            raise self._overran(what, timeout_s)
        if isinstance(answer, EnvironmentRaised):
            answer.error.__cause__ = RemoteTraceback(f"\n{answer.traceback}")
            raise answer.error
        return answer.result

    def _check(self) -> None:
        if self._lost:
            raise self._lost
        if not self._is_open:
            raise ValueError("this isolated environment is closed; make another one")

    def _overran(self, what: str, timeout_s: float) -> EnvironmentLost:
        popen = self._popen
        popen.print_stacks()
        popen.wait(_STACKS_S)
        self._process.kill()
        self._process.join()
        return self._loss(f"{self._place(what)} took longer than {timeout_s:g} s, and its process was killed")

    def _died(self, what: str) -> EnvironmentLost:
        self._process.join(_END_S)
        return self._loss(f"{self._place(what)} did not end: {self._process.failure or 'its process ended'}")

    def _place(self, what: str) -> str:
        if self._episode_seed is None:
            return f"{what} of an isolated environment"
        return f"{what} of an isolated environment, in the episode that began with reset(seed={self._episode_seed}),"

    def _loss(self, cause: str) -> EnvironmentLost:
        record = self._popen.record
        output = record.last_output if record else ""
        shown = of_output(output) if parse(output) else ""  # a process that called exit() printed none
        self.close()
        told = f"{cause}. Its stacks:\n{shown.rstrip()}" if shown else cause
        self._lost = EnvironmentLost(told, seed=self._episode_seed, cause=cause, stacks=shown)
        return self._lost

    @property
    def _popen(self) -> Popen:
        return cast(Any, self._process)._popen  # the standard library's name


class EnvironmentProcess(Process):
    """A process of an isolated environment, forked where Gymnasium is imported already."""

    _preload = ("gymnasium", "ropewalk.rl.environments.isolated_process")


__all__ = ["EnvironmentProcess", "Isolated", "IsolatedEnvironment"]
