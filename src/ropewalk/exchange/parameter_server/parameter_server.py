"""`ParameterServer`: gradients through servers, each with a part of the model.

    worker 0 ── push(piece) ──▶ ┌─────────┐         the server averages gradients: the optimizer is the worker's,
    worker 1 ── push(piece) ──▶ │ shard 0 │           and what comes back is the mean, as of an all-reduce;
    worker 2 ── push(piece) ──▶ │ shard 1 │         the server owns the weights (`optimizer=ServerSGD(...)`): weights come
              ◀── pull(piece) ──└─────────┘           back, in rounds, with bounded staleness, or with none

Li et al., "Scaling Distributed Machine Learning with the Parameter Server", OSDI 2014. Pieces are pushed and pulled by
the order of the model, because the next forward needs the first layers first, although backward makes them ready last
(BytePS; see `pieces`).
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ropewalk.errors import ExchangeAborted, ExchangeError, ExchangeInvalid, ExchangeStalled, MemberLost, ServiceLost
from ropewalk.exchange.buckets import Entry
from ropewalk.exchange.compressors import make_compressor
from ropewalk.exchange.compressors.compressor import Compressor
from ropewalk.exchange.exchange import Exchange, Report, StepRecord
from ropewalk.exchange.groups.group import Group, Work
from ropewalk.exchange.groups.shaping import ShapedPort, Shaping
from ropewalk.exchange.observer import Observer
from ropewalk.exchange.parameter_server.courier import WAIT_S, Attempt, Courier, Letter
from ropewalk.exchange.parameter_server.outcomes import Answer, Behind, Enrolled, Mode, Outdated, ServerSettings
from ropewalk.exchange.parameter_server.pieces import PIECE_BYTES, Part, bytes_of, cut_pieces, merged_state
from ropewalk.exchange.parameter_server.server_sgd import ServerSGD
from ropewalk.exchange.parameter_server.worker_piece import WorkerPiece
from ropewalk.exchange.reporting import Ledger

#: Of one push beside the message: the frame, the name of the method, worker, epoch, step and piece. Measured.
PUSH_HEADER_BYTES = 0


class ParameterServer(Exchange):
    """Averages gradients, or trains, through the shards of a parameter server.

    With `optimizer`, the server owns the weights: `bind` begins with the server's (those of rank 0 if it has none),
    and `finish` writes the next ones into the parameters; gradients stay as they are, and there is no optimizer to
    step at the worker.

    Args:
        servers: a client of the shards, which are a `Service(ParameterShard)` with any number of replicas; None until
            `connect`.
        compressor: name or object, of what is pushed.
        mode: "synchronous"; "bounded": nobody is more than `staleness` steps ahead of anybody; "asynchronous": the
            same without a bound, unless one is given.
        staleness: see `mode`; with 0 every mode is synchronous.
        optimizer: of the server, which then owns the weights.
        sparse_answers: sums of what was said travel back instead of dense ones, and workers replicate the decoder;
            None: where the compressor is GD-SEC and rounds are synchronous.
        priority: pieces of first layers overtake others; False: first come, first served.
        piece_bytes: of what travels as one.
        in_flight_bytes: so much is pushed to one shard and not answered, at most: what waits can be overtaken.
        replay_bytes: so much of what was pushed is kept for a shard that comes back from a saved state, per shard.
        timeout_s: how long a step waits without any progress before it fails.
        shaping: a slow link to simulate.
        observers: told of what happens, such as a `Timeline`.

    Raises:
        ExchangeInvalid: parts that do not fit together.
    """

    def __init__(
        self,
        servers: Any = None,  # a client: its methods are made at run time
        compressor: str | Compressor = "none",
        *,
        mode: Mode = "synchronous",
        staleness: int | None = None,
        optimizer: ServerSGD | None = None,
        sparse_answers: bool | None = None,
        priority: bool = True,
        piece_bytes: int = PIECE_BYTES,
        in_flight_bytes: int = 2 * PIECE_BYTES,
        replay_bytes: int = 256 << 20,
        timeout_s: float = 60.0,
        shaping: Shaping | None = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        chosen = make_compressor(compressor)
        bound = _staleness(mode, staleness)
        if sparse_answers is None:
            sparse_answers = chosen.name == "gd_sec" and bound == 0
        self.settings = ServerSettings(chosen, bound, optimizer, sparse_answers)
        if optimizer is None and getattr(chosen, "xi", None) is not None:
            raise ExchangeInvalid(
                f"{chosen!r} compares with how far the weights moved, which only a server knows that owns them; give "
                "it optimizer=ServerSGD(lr, reduction='sum'), or use GD-SEC's averaged form, GDSEC(c=...)"
            )
        self._servers = servers
        self._priority = priority
        self._piece_bytes = piece_bytes
        self._in_flight_bytes = in_flight_bytes
        self._replay_bytes = replay_bytes
        self._timeout_s = timeout_s
        self._shaping = shaping
        self._observers = observers
        self._group: Group | None = None

    def connect(self, servers: Any) -> None:
        """Say where the servers are; before `bind`."""
        self._servers = servers

    # Members

    def bind(self, named_parameters: Iterable[tuple[str, Tensor]], group: Group) -> None:
        if self._group is not None:
            raise RuntimeError("this exchange is bound already; make another one, or call regroup")
        if self._servers is None:
            raise RuntimeError("this parameter server has no servers yet; give it their client, or call connect")
        self._parameters = dict(named := list(named_parameters))
        pieces = cut_pieces([Entry.of(*one) for one in named], len(self._servers), self._piece_bytes)
        self._pieces = {piece.key: WorkerPiece(piece, self.settings) for piece in pieces}
        self._of_parameter: dict[str, list[tuple[int, Part, slice]]] = {}
        for piece in pieces:
            for part, place in zip(piece.parts, piece.layout.slices.values(), strict=True):
                self._of_parameter.setdefault(part.name, []).append((piece.key, part, place))
        self._group = group
        self._worker = group.members[group.rank]
        self._size, self._rank = group.size, group.rank
        self._keys = [[piece.key for piece in pieces if piece.shard == at] for at in range(len(self._servers))]
        self._codec = [threading.Lock() for _ in self._keys]
        self._progress = threading.Condition()
        self._record: StepRecord | None = None
        self._attempt = Attempt(-1, -1, over=True)
        self._failure: BaseException | None = None
        self._enrolled_at: int | None = None
        self._memories: list[dict[int, bytes]] = [{} for _ in self._keys]
        self._first_weights: list[dict[int, bytes]] = [{} for _ in self._keys]
        self._is_taken_back = False
        self._grads: dict[str, Tensor] = {}
        self._applied_samples = 1.0
        self.next_step = 0
        """The step that the servers expect next of this worker, for one that joins or comes back."""
        self._port = ShapedPort(self._shaping) if self._shaping else None
        self._ledger = Ledger()
        self._told: tuple[Observer, ...] = (self._ledger, *self._observers)
        self._tell_bound()
        self._introduce()
        self._couriers = [
            Courier(
                at,
                self._servers[at],
                self._worker,
                self,
                in_flight_bytes=self._in_flight_bytes,
                replay_bytes=self._replay_bytes,
                keeps_all=not self.settings.owns_nothing,
                port=self._port,
                wait_s=min(WAIT_S, self._timeout_s / 4),
            )
            for at in range(len(self._keys))
        ]

    def regroup(self, group: Group) -> None:
        self._bound()
        self._group = group
        self._size, self._rank = group.size, group.rank
        self._enrolled_at = None
        self._is_taken_back = False
        self._tell_bound()

    def leave(self) -> None:
        """Take part no more, between two steps: the servers forget this worker's memory and add its error once.

        Raises:
            ExchangeInvalid: with sparse answers nobody would hear of the error; hand `errors()` over to a member that
                stays, and regroup.
        """
        group = self._bound()
        if self.settings.sparse_answers:
            raise ExchangeInvalid(
                "servers that answer with sparse sums cannot add an error; give errors() to a member that stays, for "
                "its take_errors, and let the others regroup; or use sparse_answers=False"
            )
        step = self._attempt.step + 1 if self._attempt.step >= 0 else self.next_step
        for at, keys in enumerate(self._keys):
            pieces = {key: self._pieces[key] for key in keys}
            memories = {key: memory for key, piece in pieces.items() if (memory := piece.memory) is not None}
            errors = {
                key: bytes(bytes_of(error))
                for key, piece in pieces.items()
                if (error := piece.encoder.error) is not None and error.any()
            }
            self._servers[at].leave(self._worker, group.epoch, step, memories, errors)

    def _introduce(self) -> None:
        """Tell every server what it has; take its weights over, if it is to own them."""
        settings = self.settings
        self._ask_all("introduce", lambda at: (settings, self._layouts(at)))
        if settings.optimizer is None:
            return
        group = self._bound()
        if group.rank == 0:
            for at, keys in enumerate(self._keys):
                self._first_weights[at] = {key: self._of_model(key) for key in keys}
            self._ask_all("provide", lambda at: (self._first_weights[at],))
        self._take_over(with_memory=False)  # others may be members already, and wait for our memory
        self._write_weights()

    def _layouts(self, at: int) -> dict[int, Any]:
        return {key: self._pieces[key].piece.on_host for key in self._keys[at]}

    def _take_over(self, with_memory: bool) -> None:
        """Begin with what the servers have, as soon as they have all of it."""
        due = time.monotonic() + self._timeout_s
        for at, keys in enumerate(self._keys):
            while (standing := self._servers[at].standing(keys, with_memory)) is None:
                if time.monotonic() > due:
                    raise ExchangeStalled(
                        f"server {at} still waits for weights or memories of other members after {self._timeout_s} s",
                        waited_s=self._timeout_s,
                    )
            for key, found in standing.items():
                self._pieces[key].take_over(found)
                self.next_step = max(self.next_step, found.step + 1)

    def _enrol(self, step: int) -> None:
        """Become a member of this epoch, from this step on."""
        self._enrolled_at = step
        for at, keys in enumerate(self._keys):
            if self.settings.compressor.keeps_memory:
                found = {key: self._pieces[key].memory for key in keys}
                self._memories[at] = {key: memory for key, memory in found.items() if memory is not None}
        for at, outcome in enumerate(self._ask_all("enrol", self._enrolment)):
            self._check_enrolled(at, outcome)
        if self.settings.sparse_answers:
            self._take_over(with_memory=True)

    def _enrolment(self, at: int) -> tuple[Any, ...]:
        group = self._bound()
        return self._worker, group.epoch, group.members, self._enrolled_at, self._memories[at] or None

    def _check_enrolled(self, at: int, outcome: Enrolled | Outdated | Behind) -> None:
        group = self._bound()
        if isinstance(outcome, Outdated):
            raise ExchangeAborted(
                f"server {at} is at epoch {outcome.epoch} already, this worker at {group.epoch}; regroup",
                epoch=group.epoch,
            )
        if isinstance(outcome, Behind):
            raise ExchangeError(
                f"server {at} came back from a state of step {outcome.step}, before the members changed at step "
                f"{self._enrolled_at}, and its weights since then are lost; give it a shorter checkpoint_s"
            )

    def enrol_again(self, shard: int) -> None:
        """For couriers: a server came back and does not know this epoch."""
        server = self._servers[shard]
        server.introduce(self.settings, self._layouts(shard))
        self._check_enrolled(shard, server.enrol(*self._enrolment(shard)))
        if self._first_weights[shard]:
            server.provide(self._first_weights[shard])

    # A step

    def begin(self, record: StepRecord) -> None:
        group = self._bound()
        if self._is_taken_back:
            raise ExchangeAborted("the last step was taken back; call regroup first", epoch=group.epoch)
        if self._record is not None:
            raise RuntimeError(f"step {self._record.step} has not been finished")
        if self._enrolled_at is None:
            self._enrol(record.step)
        self._record, self._failure = record, None
        self._grads.clear()
        self._done: set[int] = set()
        self._attempt = Attempt(group.epoch, record.step)
        for piece in self._pieces.values():
            piece.begin()
        for courier in self._couriers:
            courier.begin(self._attempt)
        for observer in self._told:
            observer.begin(record)

    def ready(self, name: str, grad: Tensor) -> Work:
        parts = self._of_parameter.get(name)
        if parts is None:
            raise KeyError(f"no parameter is called {name!r}; there are {', '.join(self._of_parameter)}")
        if self._record is None:
            raise RuntimeError(f"{name!r} is ready outside of a step; call begin first")
        if name in self._grads:
            raise RuntimeError(f"{name!r} was ready already in step {self._record.step}")
        self._grads[name] = grad
        for observer in self._told:
            observer.ready(name)
        flat = grad.detach().reshape(-1)
        for key, part, place in parts:
            self._fill(key, place, flat[part.start : part.stop])
        return _Ready(self, self._attempt, frozenset(key for key, _, _ in parts))

    def _fill(self, key: int, place: slice, values: Tensor | float) -> None:
        piece = self._pieces[key]
        piece.flat[place] = values
        piece.left -= 1
        if not piece.left:
            for observer in self._told:
                observer.enqueued(key, piece.piece.layout.names)
            self._couriers[piece.piece.shard].post(key, key if self._priority else 0)

    def wait(self) -> None:
        if self._record is None:
            raise RuntimeError("there is no step to wait for; call begin first")
        for name, parts in self._of_parameter.items():
            if name not in self._grads:
                for key, _, place in parts:
                    if key not in self._done:
                        self._fill(key, place, 0.0)
        began = time.perf_counter()
        self._wait_for(self._attempt, frozenset(self._pieces))
        for observer in self._told:
            observer.phase("wait", -1, began, time.perf_counter())

    def _wait_for(self, attempt: Attempt, keys: frozenset[int]) -> None:
        """Wait until these pieces have come back."""
        since, num_done = time.monotonic(), -1
        with self._progress:
            while not (attempt is self._attempt and keys <= self._done):
                if attempt is not self._attempt:
                    return  # a later step has begun, so this one was finished
                if self._failure is not None:
                    raise self._failure
                if len(self._done) != num_done:
                    since, num_done = time.monotonic(), len(self._done)
                waited_s = time.monotonic() - since
                if waited_s > self._timeout_s:
                    raise self._stalled(waited_s)
                self._progress.wait(min(1.0, self._timeout_s))
                for observer in self._told:
                    observer.waiting(time.monotonic() - since)

    def _stalled(self, waited_s: float) -> ExchangeStalled:
        group = self._bound()
        names = sorted({name for courier in self._couriers for name in courier.missing})
        keys = [key for key in self._pieces if key not in self._done]
        parameters = sorted({part.name for key in keys for part in self._pieces[key].piece.parts})
        who = ", ".join(names) or "nobody in particular: perhaps a server is gone"
        return ExchangeStalled(
            f"step {self._attempt.step} has waited {waited_s:.1f} s for {who}; missing are {', '.join(parameters)}",
            ranks=tuple(group.members.index(name) for name in names if name in group.members),
            tensors=tuple((group.rank, name) for name in parameters),
            waited_s=waited_s,
        )

    def finish(self) -> Report:
        self.wait()
        record = self._record
        assert record is not None
        samples = 0.0
        for piece in self._pieces.values():
            piece.commit()
            samples = piece.applied_samples
        self._attempt.over = True
        if self.settings.optimizer:
            self._write_weights()
        self._record = None
        self._grads.clear()
        self.next_step = record.step + 1
        for observer in self._told:
            observer.ended(record.step)
        return self._ledger.finish(samples=samples, error_norm=self._error_norm())

    def abort(self, epoch: int) -> None:
        group = self._bound()
        if epoch < group.epoch:
            return
        aborted = ExchangeAborted(f"step {self._attempt.step} was taken back", epoch=group.epoch)
        with self._progress:
            if self._record is None:
                return
            self._attempt.over = True
            self._failure = self._failure or aborted
            self._record = None
            self._is_taken_back = True
            self._progress.notify_all()
        for at, keys in enumerate(self._keys):
            with self._codec[at]:  # what is being encoded or decoded comes to its end
                for key in keys:
                    self._pieces[key].abort()
        for observer in self._told:
            observer.failed(aborted)

    # From the couriers' threads

    def encode(self, key: int, attempt: Attempt) -> Letter | None:
        """For couriers: what to push of a piece."""
        piece, record = self._pieces[key], self._record
        began = time.perf_counter()
        with self._codec[piece.piece.shard]:
            if attempt.over or record is None:
                return None
            message = piece.encode(record.step, self._rank, self._size, record.samples, record.scale)
            data = message.data.tobytes()
        group = self._bound()
        group.traffic.add("push", sent=len(data), headers_sent=PUSH_HEADER_BYTES)
        names = dict(zip(piece.piece.layout.names, (part.name for part in piece.piece.parts), strict=True))
        for cut_name, size in message.layers.items():
            group.traffic.add_layers({names[cut_name]: size})
        whole = message.num_values == piece.piece.layout.numel
        for observer in self._told:
            observer.phase("encode", key, began, time.perf_counter())
            observer.sent(key, "dense" if whole else "sparse", message.num_values)
        return Letter(attempt.step, data, record.samples)

    def deliver(self, answer: Answer, attempt: Attempt) -> None:
        """For couriers: what a server says of a piece."""
        piece, record = self._pieces[answer.key], self._record
        began = time.perf_counter()
        with self._codec[piece.piece.shard]:
            if attempt.over or record is None or answer.key in self._done:
                return
            piece.deliver(answer)
            if self.settings.optimizer is None:
                self._write_mean(answer.key, record.scale)
        self._size = self._size if self.settings.synchronous else answer.size
        self._bound().traffic.add("pull", received=len(answer.data))
        for observer in self._told:
            observer.phase("decode", answer.key, began, time.perf_counter())
        with self._progress:
            self._done.add(answer.key)
            self._progress.notify_all()

    def failed(self, attempt: Attempt, error: BaseException) -> None:
        """For couriers: the attempt cannot succeed."""
        if isinstance(error, ServiceLost):
            lost = MemberLost(f"a parameter server is gone: {error}", epoch=attempt.epoch)
            lost.__cause__ = error
            error = lost
        with self._progress:
            if attempt is self._attempt and not attempt.over:
                attempt.over = True
                self._failure = error
                self._progress.notify_all()

    # Values

    def _write_mean(self, key: int, scale: float) -> None:
        piece = self._pieces[key]
        mean = piece.result
        assert mean is not None
        for part, place in zip(piece.piece.parts, piece.piece.layout.slices.values(), strict=True):
            grad = self._grads.get(part.name)
            if grad is not None:
                _write(grad, part, mean[place] if scale == 1 else mean[place] * scale)

    def _write_weights(self) -> None:
        for piece in self._pieces.values():
            assert piece.weights is not None
            for part, place in zip(piece.piece.parts, piece.piece.layout.slices.values(), strict=True):
                _write(self._parameters[part.name], part, piece.weights[place])

    def _of_model(self, key: int) -> bytes:
        parts = self._pieces[key].piece.parts
        flats = [self._parameters[part.name].detach().reshape(-1)[part.start : part.stop] for part in parts]
        return bytes(bytes_of(torch.cat(flats)))

    # What is kept

    def errors(self) -> dict[str, Tensor]:
        """What compression has kept back, by parameter; between two steps."""
        found = [
            (piece.piece, {"": piece.piece.layout.by_name(error)})
            for piece in self._pieces.values()
            if (error := piece.encoder.error) is not None
        ]
        flat = merged_state(found).get("", {})
        return {name: error.reshape(self._parameters[name].shape) for name, error in flat.items()}

    def take_errors(self, errors: Mapping[str, Tensor]) -> None:
        """Take over what a member that leaves had kept back; added to the own."""
        for name, flat in errors.items():
            for key, part, place in self._of_parameter.get(name, ()):
                error = torch.zeros_like(self._pieces[key].flat)
                error[place] = flat.reshape(-1)[part.start : part.stop].to(error)
                self._pieces[key].encoder.take_error(error)

    def _error_norm(self) -> float:
        errors = [piece.encoder.error for piece in self._pieces.values()]
        return math.sqrt(sum(float(error.square().sum()) for error in errors if error is not None))

    def report(self) -> Report:
        return self._ledger.report()

    def state_dict(self) -> dict[str, Any]:
        state = merged_state((piece.piece, piece.state_dict()) for piece in self._pieces.values())
        samples = next(iter(self._pieces.values())).applied_samples
        return {"pieces": state, "applied_samples": samples, "next_step": self.next_step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._bound()
        for piece in self._pieces.values():
            piece.load_state_dict(state["pieces"], state["applied_samples"])
        self._enrolled_at = None  # the servers remember the sum of the memories that were loaded

    def close(self) -> None:
        if self._group is None:
            return
        self._attempt.over = True
        for courier in self._couriers:
            courier.close()
        for observer in self._told:
            observer.close()

    # Smaller steps

    def _bound(self) -> Group:
        if self._group is None:
            raise RuntimeError("this exchange is not bound to parameters yet; call bind first")
        return self._group

    def _tell_bound(self) -> None:
        layouts = [piece.piece.layout for piece in self._pieces.values()]
        for observer in self._told:
            observer.bind(layouts, self._bound())

    def _ask_all(self, method: str, arguments: Callable[[int], tuple[Any, ...]]) -> list[Any]:
        """Call a method of every server at the same time; `arguments(at)` are those for server `at`."""
        calls = [getattr(self._servers[at], method).future(*arguments(at)) for at in range(len(self._keys))]
        return [call.result() for call in calls]


class _Ready(Work):
    """One parameter's gradient, on its way."""

    def __init__(self, exchange: ParameterServer, attempt: Attempt, keys: frozenset[int]) -> None:
        self._exchange = exchange
        self._attempt = attempt
        self._keys = keys

    def wait(self) -> None:
        self._exchange._wait_for(self._attempt, self._keys)  # pyright: ignore[reportPrivateUsage]

    @property
    def done(self) -> bool:
        exchange = self._exchange
        return exchange._attempt is not self._attempt or self._keys <= exchange._done  # pyright: ignore[reportPrivateUsage]


def _staleness(mode: str, staleness: int | None) -> int | None:
    if mode not in ("synchronous", "bounded", "asynchronous"):
        raise ExchangeInvalid(f'mode is "synchronous", "bounded" or "asynchronous", not {mode!r}')
    if mode == "synchronous" and staleness:
        raise ExchangeInvalid(f'a synchronous server has no staleness={staleness}; use mode="bounded"')
    if mode == "bounded" and staleness is None:
        raise ExchangeInvalid('mode="bounded" needs a bound, such as staleness=2')
    return 0 if mode == "synchronous" else staleness


def _write(tensor: Tensor, part: Part, values: Tensor) -> None:
    """Write to some components of a tensor, in place."""
    with torch.no_grad():
        if tensor.is_contiguous():
            tensor.view(-1)[part.start : part.stop] = values
        else:
            whole = tensor.reshape(-1)
            whole[part.start : part.stop] = values
            tensor.copy_(whole.view(tensor.shape))
