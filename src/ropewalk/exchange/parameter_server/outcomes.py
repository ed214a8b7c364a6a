"""What a shard is told of its configuration, and what it answers: the words between workers and servers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from ropewalk.errors import ExchangeInvalid
from ropewalk.exchange.compressors.compressor import Compressor
from ropewalk.exchange.parameter_server.server_sgd import ServerSGD

Mode = Literal["synchronous", "bounded", "asynchronous"]


def staleness_bound(mode: str, staleness: int | None) -> int | None:
    """For how many steps a mode lets the fastest worker be ahead; None: for any number.

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
    """How a server works; the same at all workers, who bring it along.

    Attributes:
        compressor: of the messages.
        staleness: for how many steps the fastest worker may be ahead of the slowest one; 0 is synchronous, None is
            no bound at all.
        optimizer: the server owns the weights and updates them; None: it gives back sums, and owns nothing.
        sparse_answers: the sum of what was said travels back, and workers keep a replica of the decoder (and of
            the weights); otherwise dense sums (or weights) do.
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
            raise ExchangeInvalid("sums of what was said make the same weights everywhere only with staleness=0")

    @property
    def synchronous(self) -> bool:
        return self.staleness == 0

    @property
    def owns_nothing(self) -> bool:
        """Whether a shard could begin anew at any step: it has neither weights nor a memory."""
        return self.optimizer is None and not self.compressor.keeps_memory


@dataclass(frozen=True, slots=True)
class Enrolled:
    """A worker is a member.

    Attributes:
        lacking: pieces that have no weights yet.
        step: the first that the shard lacks of this worker in some piece.
    """

    lacking: tuple[int, ...] = ()
    step: int = 0


@dataclass(frozen=True, slots=True)
class Accepted:
    """A push was taken, or had been taken before.

    Attributes:
        durable: pushes of earlier steps are in saved states, and need not be kept for a replay.
    """

    durable: int = 0


@dataclass(frozen=True, slots=True)
class Behind:
    """The shard came back from a saved state and needs the pushes from this step on again, in order."""

    step: int


@dataclass(frozen=True, slots=True)
class Outdated:
    """The epoch of the caller is over, or it is no member; `epoch` is the current one, -1 before the first."""

    epoch: int


@dataclass(frozen=True, slots=True)
class PullAnswer:
    """What a worker pulls of one piece.

    Attributes:
        key: of the piece.
        step: of the round that made it.
        samples: sum of the members' samples in that round.
        size: members in that round.
        data: a dense sum, dense weights or a message, as the settings say.
    """

    key: int
    step: int
    samples: float
    size: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Pulled:
    """What is ready of a pull.

    Attributes:
        answers: the most urgent ones first; not all that are ready, if these are large.
        missing: where nothing is ready: members that have not pushed what this waits for.
        behind: pieces that lack pushes of this worker, with the step from which on to push again.
        corrupt: which of these lack it because it could not be read, with what was wrong.
    """

    answers: tuple[PullAnswer, ...] = ()
    missing: tuple[str, ...] = ()
    behind: Mapping[int, int] = field(default_factory=dict[int, int])
    corrupt: Mapping[int, str] = field(default_factory=dict[int, str])


@dataclass(frozen=True, slots=True)
class PieceStanding:
    """What a piece is made of when a worker takes it over, as `bytes_of` gives it; None for what there is not.

    Attributes:
        step: of the last round that is in.
        weights: of the piece.
        velocity: of the server's optimizer.
        memory: what decoders remember, a sum over members.
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
