"""`RemotePolicy`: the policy of an actor that holds no network and asks an `InferenceServer` instead."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import cast

import numpy as np
from numpy.typing import NDArray

from ropewalk.rl.environments.spec import Array, Observation
from ropewalk.rl.inference.caller_rows import GroupRequest, Rows, packed, run_number, set_words
from ropewalk.rl.inference.recurrent_memory import StateArrays
from ropewalk.rl.inference.server import InferenceAnswer, InferenceServer
from ropewalk.rl.policies.policy import ActionChoice, ActionRequest, Policy
from ropewalk.rl.variables import Variables

_logger = logging.getLogger(__name__)


class RemoteState(Mapping[str, Array]):
    """Recurrent state that stayed at the server; fetched when it is looked at, such as at the beginning of a block.

    Args:
        policy: whose state it is.
        step: the state before this step.
        names: names of the arrays.
        num_envs: rows of the arrays.
    """

    def __init__(self, policy: RemotePolicy, step: int, names: tuple[str, ...], num_envs: int) -> None:
        self.policy, self.step = policy, step
        self._names, self._num_envs = names, num_envs
        self._arrays: StateArrays | None = None

    def __getitem__(self, name: str) -> Array:
        if self._arrays is None:
            self._arrays = self.policy.fetched_state(self.step, self._num_envs)
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class RemotePolicy(Policy):
    """Asks a server for actions. One object serves one group of environments, and one collector at a time.

    Given the same generator, it chooses what the server's policy would choose here, and leaves the generator where that
    policy would leave it. Where the server was restarted and the environments are in the middle of episodes, their
    memory starts over; that is logged and counted.

    Args:
        server: an `InferenceServer`, or the client of one. With several replicas, a policy with memory keeps to one of
            them, and one without memory takes the least busy one.
        group: number of the group of environments.
        run_id: which life of which group this is; by default a new one.
        keeps_to: number by which one of several servers is taken, the same for groups that act together; by default
            the group.

    Attributes:
        num_forgotten: times that an environment's memory began anew in the middle of an episode.
    """

    def __init__(
        self, server: InferenceServer, group: int = 0, run_id: str | None = None, *, keeps_to: int | None = None
    ) -> None:
        self._server, self._group = server, group
        self._keeps_to = group if keeps_to is None else keeps_to
        self._run = run_number(uuid.uuid4().hex if run_id is None else run_id)
        self._step = 0
        self._names: tuple[str, ...] | None = None
        self._extra_names: dict[bool, tuple[str, ...]] = {}
        self._kept_to: tuple[int, InferenceServer] | None = None
        self._oldest: int | None = None
        self.num_forgotten: int = 0

    def __repr__(self) -> str:
        return f"<RemotePolicy of group {self._group}>"

    def initial_state(self, num_envs: int) -> dict[str, Array]:
        """See `Policy`."""
        state = dict(self._server.initial_state(num_envs))
        self._names = tuple(state)
        return state

    def act(
        self,
        observation: Observation,
        first: NDArray[np.bool_],
        state: Mapping[str, Array],
        rng: np.random.Generator,
        *,
        greedy: bool = False,
    ) -> ActionChoice:
        """See `Policy`. The recurrent state of the choice stays at the server until it is looked at."""
        request = ActionRequest(self, observation, first, state, rng)
        return self.act_together([request], greedy=greedy)[0]

    @staticmethod
    def act_together(requests: Sequence[ActionRequest], *, greedy: bool = False) -> list[ActionChoice]:
        """Return the choices of several remote policies, by one call; each gets what it would get by one of its own.

        Args:
            requests: requests of remote policies with the same server, which keep to the same one of its replicas.
            greedy: act without exploration.
        """
        policies = [cast(RemotePolicy, request.policy) for request in requests]
        server, *_ = [policy._server_of(request) for policy, request in zip(policies, requests, strict=True)]
        rows = packed(*[policy._caller(request) for policy, request in zip(policies, requests, strict=True)])
        if len(requests) == 1:
            (request,) = requests
            answer = policies[0]._asked(server, rows, request.observation, request.first, greedy=greedy)
            return [policies[0]._choice(answer, request)]
        observation = _joined([request.observation for request in requests])
        first = np.concatenate([request.first for request in requests])
        answer = policies[0]._asked(server, rows, observation, first, greedy=greedy)
        choices, end = list[ActionChoice](), 0
        for policy, request in zip(policies, requests, strict=True):
            begin, end = end, end + len(request.first)
            choices.append(policy._choice(answer.part(slice(begin, end)), request))
        return choices

    def load(self, variables: Variables) -> None:
        """Raise: the server has the weights, and gets newer ones by itself."""
        raise NotImplementedError(
            f"version {variables.version} of the weights was given to a remote policy; its inference server asks the "
            "learner for weights by itself"
        )

    def take_version(self) -> int:
        """Return the oldest version of weights that acted since the last question; -1 if none did."""
        oldest, self._oldest = self._oldest, None
        return -1 if oldest is None else oldest

    def fetched_state(self, step: int, num_envs: int) -> StateArrays:
        """Return the recurrent state before a step.

        Raises:
            RuntimeError: later steps were taken since, and the server has only the newest state.
        """
        if step < self._step - 1:
            raise RuntimeError(
                f"the recurrent state before step {step} was asked for after step {self._step - 1}, and an inference "
                "server keeps the newest one only; look at it before the next step"
            )
        return self._replica().state_before(self._group, self._run, step, num_envs)

    def _server_of(self, request: ActionRequest) -> InferenceServer:
        """Return the server that is to act, which has the state that is acted from."""
        if self._names is None:
            self.initial_state(1)
        if not self._names:
            return self._server
        server, first, state = self._replica(), request.first, request.state
        if not first.all() and not self._is_there(state):
            arrays = {name: np.array(state[name]) for name in self._names}
            server.set_state(self._group, self._run, self._step, arrays)
        return server

    def _caller(self, request: ActionRequest) -> GroupRequest:
        return GroupRequest(self._group, self._run, self._step, len(request.first), request.rng)

    def _choice(self, answer: InferenceAnswer, request: ActionRequest) -> ActionChoice:
        """Return what the server chose, and bring the caller's generator to where the server left it."""
        set_words(request.rng, answer.words[0].tolist())
        self._step += 1
        self._note(answer)
        names = self._names or ()
        after = RemoteState(self, self._step, names, len(request.first)) if names else dict[str, Array]()
        return ActionChoice(answer.action, answer.extras, after)

    def _asked(
        self, server: InferenceServer, rows: Rows, observation: Observation, first: NDArray[np.bool_], *, greedy: bool
    ) -> InferenceAnswer:
        while True:
            # Arrays alone travel without being pickled anew for each call; most calls are not greedy.
            arrays = server.act(rows, observation, first, True) if greedy else server.act(rows, observation, first)
            if greedy in self._extra_names or self._learn_extra_names(greedy):
                return InferenceAnswer.of(arrays, self._extra_names[greedy])
            # The server that answered has died since: the call is repeated, with the same numbers.

    def _learn_extra_names(self, greedy: bool) -> bool:
        """Ask each replica, since the client alone would ask the least busy one, which may never have acted."""
        for server in self._replicas():
            if (names := server.extra_names(greedy)) is not None:
                self._extra_names[greedy] = names
                return True
        return False

    def _is_there(self, state: Mapping[str, Array]) -> bool:
        """Whether the server has this state, as far as this process can know."""
        return isinstance(state, RemoteState) and state.policy is self and state.step == self._step

    def _replica(self) -> InferenceServer:
        """Return the one of several servers that has the memory of this group."""
        num = self._num_replicas()
        if self._kept_to is None or self._kept_to[0] != num:
            self._kept_to = num, self._replicas()[self._keeps_to % num]
        return self._kept_to[1]

    def _num_replicas(self) -> int:
        return len(cast("Sized", self._server)) if hasattr(self._server, "__len__") else 1

    def _replicas(self) -> list[InferenceServer]:
        num, replicas = self._num_replicas(), cast("Mapping[int, InferenceServer]", self._server)
        return [self._server] if num == 1 else [replicas[index] for index in range(num)]

    def _note(self, answer: InferenceAnswer) -> None:
        version = int(answer.version[0])
        self._oldest = version if self._oldest is None else min(self._oldest, version)
        if self._names and (num := int(answer.forgot.sum())):
            self.num_forgotten += num
            _logger.warning(
                "the inference server had no memory of group %d: %d of %d environments began anew in the middle of an "
                "episode",
                self._group,
                num,
                len(answer.forgot),
            )


def _joined(observations: Sequence[Observation]) -> Observation:
    first = observations[0]
    if isinstance(first, dict):
        several = cast("Sequence[Mapping[str, Array]]", observations)
        return {name: np.concatenate([each[name] for each in several]) for name in first}
    return np.concatenate(cast("Sequence[Array]", observations))


__all__ = ["RemotePolicy", "RemoteState"]
