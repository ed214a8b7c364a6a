"""The user's restart rule: whether, how many times and with which others a node is restarted; `ropewalk.Restart`."""

from __future__ import annotations

import dataclasses
from typing import Literal, get_args

from ropewalk.argument_kinds import check_kind
from ropewalk.near_names import check_choice
from ropewalk.supervision.restart import RestartIntensity, RestartPolicy

Policy = Literal["never", "on_failure", "always"]
Strategy = Literal["alone", "together"]


@dataclasses.dataclass(frozen=True, slots=True)
class Restart:
    """The restart rule of a node or of a group of nodes.

    Every failure counts, including those of a node that had been ready, as in Erlang's restart intensity: more than
    `max_restarts` failures within `window_s` are a crash loop, and the node has failed, with the cause of the first
    failure. The first restart is immediate, so that a killed service answers again soon; the wait before each further
    restart within the window is twice as long as the previous one. It does not count as a failure when a replica's host
    is about to be taken away: the replica is asked to end and restarts on another host, whatever the policy.

    Example:
        >>> Restart("on_failure", max_restarts=3, strategy="together").policy
        'on_failure'

    Raises:
        ValueError: a value is out of its range.
        TypeError: a value is no number.
    """

    policy: Policy = "on_failure"
    """"never"; "on_failure": after failures only; "always": after completion too, until the program stops."""
    max_restarts: int = 5
    """Number of failures within `window_s` that are followed by a restart; one more is final."""
    window_s: float = 60.0
    """Seconds after which a failure no longer counts, provided the node has become ready since; `math.inf`: all
    count."""
    backoff_s: float = 0.1
    """Seconds of wait before the second restart within the window, and before each restart after a completion."""
    backoff_max_s: float = 10.0
    """Maximum wait in seconds."""
    jitter: float = 0.5
    """Largest fraction of a wait that may be left out, 0 to 1, so that nodes do not all restart at the same moment."""
    strategy: Strategy = "alone"
    """"alone": only the replica that failed; "together": its whole gang ends and restarts."""

    def __post_init__(self) -> None:
        check_choice("policy", self.policy, get_args(Policy))
        check_choice("strategy", self.strategy, get_args(Strategy))
        check_kind("max_restarts", self.max_restarts, int, "a whole number", required=True)
        for name in ("window_s", "backoff_s", "backoff_max_s", "jitter"):
            check_kind(name, getattr(self, name), int | float, "a number", required=True)
        self._limits()  # checks the ranges

    def intensity(self, seed: int | str = 0) -> RestartIntensity:
        """A new count of failures for one gang or replica."""
        return RestartIntensity(self._limits(), seed=seed)

    def _limits(self) -> RestartPolicy:
        return RestartPolicy(self.max_restarts, self.window_s, self.backoff_s, self.backoff_max_s, self.jitter)


def restart_rule(value: str | Restart | None) -> Restart:
    """Convert a user's `restart=`: a `Restart`, the name of a policy, or None for "never".

    Raises:
        ValueError: the string is not a policy.
        TypeError: the value has another type.
    """
    if value is None:
        return Restart("never")
    if isinstance(value, Restart):
        return value
    if isinstance(value, str):
        check_choice("restart", value, get_args(Policy))
        return Restart(value)  # type: ignore[arg-type]
    raise TypeError(
        f"restart must be one of {', '.join(map(repr, get_args(Policy)))} or a ropewalk.Restart, not {value!r}; "
        f'for a number of restarts write ropewalk.Restart("on_failure", max_restarts=...)'
    )
