"""The messages between workers and servers: the settings of a shard, and its answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from ropewalk.errors import ExchangeInvalid
from ropewalk.exchange.compressors.compressor import Compressor
from ropewalk.exchange.parameter_server.server_sgd import ServerSGD

Mode = Literal["synchronous", "bounded", "asynchronous"]


def staleness_bound(mode: str, staleness: int | None) -> int | None:
    """Return the number of steps that a mode lets the fastest worker be ahead; None: any number.

    Args:
        mode: "synchronous", "bounded" or "asynchronous".
        staleness: the number of steps; None for the mode's default.

    Raises:
        ExchangeInvalid: there is no such mode, or it does not go with this staleness.
    """
    if mode not in get_args(Mode):
        raise ExchangeInvalid(f'mode is "synchronous", "bounded" or "asynchronous", not {mode!r}')
    if mode == "synchronous" and staleness:
        raise ExchangeInvalid(f'a synchronous server has no staleness={staleness}; use mode="bounded"')
    if mode == "bounded" and staleness is None:
        raise ExchangeInvalid('mode="bounded" needs a bound, such as staleness=2')
    return 0 if mode == "synchronous" else staleness


@dataclass(frozen=True)
class ServerSettings:
    """The settings of a server; the same on all workers, which bring them along.

    Attributes:
        compressor: the compressor of the messages.
        staleness: number of steps that the fastest worker may be ahead of the slowest one; 0 is synchronous, None is no
            bound at all.
        optimizer: the server owns the weights and updates them with this; None: it returns sums, and owns nothing.
        sparse_answers: whether the sum of the messages travels back, and workers keep a replica of the decoder (and of
            the weights); otherwise dense sums (or weights) travel back.
    """

    compressor: Compressor
    staleness: int | None = 0
    optimizer: ServerSGD | None = None
    sparse_answers: bool = False

    def __post_init__(self) -> None:
        if self.staleness is not None and self.staleness < 0:
            raise ExchangeInvalid(f"staleness is a number of steps, 0 or more, or None, not {self.staleness!r}")
        if self.synchronous:
            return
        if self.optimizer is None:
            raise ExchangeInvalid(
                f"with staleness={self.staleness} there is no mean gradient of a step that all would wait for; let the "
                "server own the weights, with optimizer=ServerSGD(lr), or use staleness=0"
            )
        if not self.compressor.stale_safe:
            raise ExchangeInvalid(
                f"{self.compressor!r} compares with what was applied last everywhere, which with "
                f"staleness={self.staleness} differs from worker to worker; use staleness=0, or GD-SEC's server form, "
                "GDSEC(xi=...), where each worker compares with its own last two weights"
            )
        if self.sparse_answers:
            raise ExchangeInvalid("sums of messages give the same weights everywhere only with staleness=0")

    @property
    def synchronous(self) -> bool:
        return self.staleness == 0

    @property
    def owns_nothing(self) -> bool:
        """Whether a shard could start over at any step: it has neither weights nor a memory."""
        return self.optimizer is None and not self.compressor.keeps_memory


@dataclass(frozen=True, slots=True)
class Enrolled:
    """A worker is a member.

    Attributes:
        lacking: keys of pieces that have no weights yet.
        step: the first step of this worker that the shard lacks in some piece.
    """

    lacking: tuple[int, ...] = ()
    step: int = 0


@dataclass(frozen=True, slots=True)
class Accepted:
    """A push was taken, or had been taken before.

    Attributes:
        durable: pushes of steps before this one are in saved states, and need not be kept for a replay.
    """

    durable: int = 0


@dataclass(frozen=True, slots=True)
class Behind:
    """The shard was restored from a saved state and needs the pushes from this step on again, in order."""

    step: int


@dataclass(frozen=True, slots=True)
class Outdated:
    """The caller's epoch is over, or the caller is not a member; `epoch` is the current one, -1 before the first."""

    epoch: int


@dataclass(frozen=True, slots=True)
class PullAnswer:
    """The answer of a pull for one piece.

    Attributes:
        key: key of the piece.
        step: step of the round that made the answer.
        samples: sum of the members' samples in that round.
        size: number of members in that round.
        data: a dense sum, dense weights or a message, as the settings say.
    """

    key: int
    step: int
    samples: float
    size: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Pulled:
    """The answers that are ready for a pull.

    Attributes:
        answers: the most urgent ones first; not all that are ready, if these are large.
        missing: where nothing is ready: members that have not pushed what this pull waits for.
        behind: pieces that lack pushes of this worker, with the step from which to push again.
        corrupt: those of `behind` whose push could not be decoded, with the error.
    """

    answers: tuple[PullAnswer, ...] = ()
    missing: tuple[str, ...] = ()
    behind: Mapping[int, int] = field(default_factory=dict[int, int])
    corrupt: Mapping[int, str] = field(default_factory=dict[int, str])


@dataclass(frozen=True, slots=True)
class PieceStanding:
    """The state of a piece for a worker that takes it over, as `bytes_of` returns it; None for parts that do not exist.

    Attributes:
        step: the last round that is included.
        weights: weights of the piece.
        velocity: velocity of the server's optimizer.
        memory: memory of the decoders, a sum over members.
    """

    step: int
    weights: bytes | None = None
    velocity: bytes | None = None
    memory: bytes | None = None


__all__ = [
    "Accepted",
    "Behind",
    "Enrolled",
    "Mode",
    "Outdated",
    "PieceStanding",
    "PullAnswer",
    "Pulled",
    "ServerSettings",
    "staleness_bound",
]
