"""`ParameterServer`: averages gradients through servers that hold a part of the model each.

    worker 0 ── push(piece) ──▶ ┌─────────┐   the server averages gradients: the mean comes back, as from an
    worker 1 ── push(piece) ──▶ │ shard 0 │   all-reduce, and the optimizer is the worker's;
    worker 2 ── push(piece) ──▶ │ shard 1 │   or the server owns the weights (`optimizer=ServerSGD(...)`), which come
              ◀── pull(piece) ──└─────────┘   back in rounds, with bounded staleness, or at any time

Li et al., "Scaling Distributed Machine Learning with the Parameter Server", OSDI 2014. Pieces are pushed and pulled in
the order of the model, because the next forward needs the first layers first, although the backward makes them ready
last (BytePS; see `pieces`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from ropewalk.errors import (
    ExchangeAborted,
    ExchangeInvalid,
    ExchangeStalled,
    GradientNotFinite,
    MemberLost,
    ServiceLost,
)
from ropewalk.exchange.buckets import BucketEntry, check_real
from ropewalk.exchange.compressors import make_compressor
from ropewalk.exchange.compressors.compressor import Compressor
from ropewalk.exchange.exchange import Exchange, ExchangeReport, StepRecord
from ropewalk.exchange.groups.group import Group, Work
from ropewalk.exchange.groups.link_emulation import LinkEmulation
from ropewalk.exchange.not_finite import NanPolicy, check_policy, is_finite
from ropewalk.exchange.observers import WHOLE_STEP, Observer, Observers
from ropewalk.exchange.parameter_server.enrolment import Enrolment
from ropewalk.exchange.parameter_server.outcomes import Mode, PullAnswer, ServerSettings, staleness_bound
from ropewalk.exchange.parameter_server.pieced_model import PiecedModel
from ropewalk.exchange.parameter_server.pieces import PIECE_BYTES
from ropewalk.exchange.parameter_server.server_sgd import ServerSGD
from ropewalk.exchange.parameter_server.shard_client import WAIT_S, Attempt, Letter, ShardClient, SharedPort
from ropewalk.exchange.parameter_server.weighting import Weighting
from ropewalk.exchange.reporting import Ledger

_LOOK_S = 1.0
"""Seconds without news after which a waiting worker asks whether servers still have what it pushed."""
HEADER_BYTES = 157
"""Bytes that a worker sends for a piece in addition to the message: the calls that push and pull, frames and names.
Measured at the socket; it differs by a few bytes with the length of the worker's name."""


class ParameterServer(Exchange):
    """Averages gradients, or trains, through the shards of a parameter server.

    Li et al., Scaling Distributed Machine Learning with the Parameter Server, OSDI 2014.

    With `optimizer`, the server owns the weights: `bind` begins with the server's (those of rank 0 if it has none), and
    `finish` writes the next ones into the parameters; gradients stay as they are, and the worker steps no optimizer.

    Compressors that keep residuals or memories do so in units of the mean where a step's record has `total_samples`,
    and then the number of samples may vary; otherwise it must be the same in every step of a member.

    A shard that is restored gets what it lacks from the members, in or before their next step. So let all members end
    together: one that is closed can send nothing again, and the others would wait for it until their timeout.

    Args:
        servers: a client of the shards, which are a `Service(ParameterShard)` with any number of replicas; None until
            `connect`.
        compressor: the compressor of pushed gradients, or its name.
        mode: "synchronous"; "bounded": no worker is more than `staleness` steps ahead of another; "asynchronous": the
            same without a bound, unless one is given.
        staleness: number of steps, see `mode`; with 0 every mode is synchronous.
        optimizer: optimizer of the server, which then owns the weights.
        sparse_answers: whether sums of messages travel back instead of dense sums, and workers replicate the decoder;
            None: only if the compressor is GD-SEC and rounds are synchronous.
        priority: pieces of the first layers overtake others; False: first come, first served.
        piece_bytes: size of a piece in bytes.
        in_flight_bytes: maximum number of bytes that are pushed to one shard and not answered; waiting pieces can be
            overtaken.
        replay_bytes: maximum number of pushed bytes that are kept per shard, for a shard that is restored from a saved
            state.
        timeout_s: seconds without any progress after which a step fails.
        nan: "raise": gradients are checked before any of the step is sent, so pieces travel only when all gradients are
            ready; where one is NaN or infinite, `GradientNotFinite` is raised on this member, the others wait, and the
            same step can be begun again with other gradients. "pass": they travel at once, as they are, and NaN stays
            in any state. None: "raise" where the compressor keeps residuals or memories, otherwise "pass". For steps
            that all members skip together, as a GradScaler needs them with stateful compressors, use `AllReduce` or
            `AllGather`.
        shaping: rate and latency of a slow link to emulate.
        observers: observers that are told of each event, such as an `ExchangeTimeline`.

    Raises:
        ExchangeInvalid: arguments that do not fit together.
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
        nan: NanPolicy | None = None,
        shaping: LinkEmulation | None = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        if isinstance(servers, int):
            raise ExchangeInvalid(
                f"servers is the client of the shards, not their number {servers}; data_parallel(..., "
                f"exchange=ParameterServer, servers={servers}) makes shards and client"
            )
        chosen = make_compressor(compressor)
        bound = staleness_bound(mode, staleness)
        if sparse_answers is None:
            sparse_answers = chosen.name == "gd_sec" and bound == 0
        self.settings: ServerSettings = ServerSettings(chosen, bound, optimizer, sparse_answers)
        if optimizer is None and getattr(chosen, "xi", None) is not None:
            raise ExchangeInvalid(
                f"{chosen!r} compares with how far the weights moved, which only a server that owns them knows; give "
                "it optimizer=ServerSGD(lr, reduction='sum'), or use GD-SEC's averaged form, GDSEC(c=...)"
            )
        self._servers = servers
        self._priority = priority
        self._piece_bytes = piece_bytes
        self._in_flight_bytes = in_flight_bytes
        self._replay_bytes = replay_bytes
        self._timeout_s = timeout_s
        self._nan = nan if nan is None else check_policy(nan)
        if self._nan in ("skip", "zero"):
            raise ExchangeInvalid(
                f'a parameter server has nan="raise" or nan="pass", not {nan!r}; AllReduce and AllGather have all four'
            )
        self._shaping = shaping
        self._observers = observers
        self._enrolment: Enrolment | None = None

    def __repr__(self) -> str:
        return f"<ParameterServer of {self.settings.compressor!r}>"

    def connect(self, servers: Any, shaping: LinkEmulation | None = None) -> None:
        """Set the client of the servers, and the link to emulate where the constructor got none; before `bind`."""
        self._servers = servers
        self._shaping = self._shaping or shaping

    # Members

    def bind(self, named_parameters: Iterable[tuple[str, Tensor]], group: Group) -> None:
        if self._enrolment is not None:
            raise RuntimeError("this exchange is bound already; make another one, or call regroup")
        if self._servers is None:
            raise RuntimeError("this parameter server has no servers yet; give it their client, or call connect")
        named = list(named_parameters)
        check_real([BucketEntry.of(*pair) for pair in named], repr(self))
        self._model = model = PiecedModel(named, len(self._servers), self._piece_bytes, self.settings)
        enrolment = Enrolment(self._servers, self.settings, model, group, self._timeout_s)
        enrolment.introduce()
        self._screens = self._nan == "raise" or (self._nan is None and model.keeps_state)
        self._weighting = Weighting(self.settings, model.keeps_state)
        self._enrolment = enrolment
        self._size = group.size
        self._codec = [threading.Lock() for _ in model.keys]
        self._progress = threading.Condition()
        self._record: StepRecord | None = None
        self._attempt = Attempt(-1, -1, over=True)
        self._is_taken_back = False
        self._is_enrolling = False
        self._done: set[int] = set()
        self._held: list[int] = []
        self._not_finite: list[str] = []
        self._ledger = Ledger()
        self._told = Observers((self._ledger, *self._observers))
        self._tell_bound(group)
        port = SharedPort(self._shaping) if self._shaping else None
        self._couriers = [
            ShardClient(
                at,
                self._servers[at],
                enrolment.worker,
                self,
                in_flight_bytes=self._in_flight_bytes,
                replay_bytes=self._replay_bytes,
                keeps_all=not self.settings.owns_nothing,
                port=port,
                wait_s=min(WAIT_S, self._timeout_s / 4),
            )
            for at in range(len(model.keys))
        ]

    def regroup(self, group: Group) -> None:
        enrolment = self._bound()
        enrolment.group, enrolment.step = group, None
        self._size = group.size
        self._is_taken_back = False
        self._tell_bound(group)

    @property
    def next_step(self) -> int:
        """The next step of this worker that the servers expect, for a worker that joins or is restarted."""
        return self._bound().next_step

    def leave(self) -> None:
        """Stop taking part, between two steps: the servers forget this worker's memory and add its residual once.

        What this worker has pushed leaves with it: while others still wait for the mean of its last step, a server that
        is killed and comes back without that step cannot repeat it, and they raise `ExchangeStalled`, which names it.

        Raises:
            ExchangeInvalid: with sparse answers the residual would reach no member; hand `errors()` over to a member
                that stays, and regroup.
        """
        self._bound().leave(self.next_step)

    # Steps

    def begin(self, record: StepRecord) -> None:
        enrolment = self._bound()
        epoch = enrolment.group.epoch
        if self._is_taken_back:
            raise ExchangeAborted("the last step was taken back; call regroup first", epoch=epoch)
        if self._record is not None:
            raise RuntimeError(f"step {self._record.step} has not been finished")
        weight = self._weighting.of(record)
        if enrolment.step is None:
            with self._progress:
                enrolment.listen()
                self._is_enrolling = True
            try:
                enrolment.enrol(record.step)
            except BaseException:
                self._is_enrolling = False
                enrolment.step = None  # members that enrol again, perhaps of a later epoch, repeat all calls
                raise
        with self._progress:  # from here on an abort finds either the enrolment or the step
            if self._is_enrolling:
                self._is_enrolling = False
                try:
                    enrolment.check()
                except ExchangeAborted:
                    enrolment.step = None
                    raise
            self._done = set()
            self._held, self._not_finite = [], []
            self._weight = weight
            self._attempt = Attempt(epoch, record.step)
            self._record = record
        self._model.begin()
        for courier in self._couriers:
            courier.begin(self._attempt)
        self._told.begin(record)

    def ready(self, name: str, grad: Tensor) -> Work:
        self._bound()
        places = self._model.places.get(name)
        if places is None:
            raise KeyError(f"no parameter is called {name!r}; there are {', '.join(self._model.places)}")
        self._require_step(f"{name!r} is ready outside of a step")
        if name in self._model.gradients:
            raise RuntimeError(f"{name!r} was ready already in step {self._attempt.step}")
        self._model.gradients[name] = grad
        self._told.ready(name)
        self._fill(name, grad)
        return _Ready(self, self._attempt, frozenset(key for key, _, _ in places))

    def _fill(self, name: str, gradient: Tensor | None) -> None:
        complete = self._model.fill(name, gradient)
        if not self._screens:
            self._post(complete)
            return
        if gradient is not None and not is_finite(gradient.detach()):
            self._not_finite.append(name)
        self._held += complete
        if not self._not_finite and len(self._held) == len(self._model.pieces):
            self._post(self._held)

    def _post(self, keys: Iterable[int]) -> None:
        for key in keys:
            piece = self._model.pieces[key].piece
            self._told.enqueued(key, piece.layout.names)
            self._couriers[piece.shard].post(key, key if self._priority else 0)

    def _require_travel(self, keys: frozenset[int]) -> None:
        """Raise if these pieces do not travel before other gradients are ready, too."""
        if self._record is not None and self._not_finite:
            self._refuse_not_finite()
        is_held = self._screens and len(self._held) < len(self._model.pieces)
        if self._record is not None and is_held and not keys <= self._done:
            raise RuntimeError(
                "gradients travel when all of them are ready, because each is first checked for NaN; call wait, or "
                'give ParameterServer nan="pass"'
            )

    def _refuse_not_finite(self) -> None:
        """Refuse gradients that are not finite. Nothing of this step has been sent: it can be begun again."""
        if not self._not_finite:
            return
        record, rank = self._record, self._bound().group.rank
        assert record is not None
        shown, parameters = ", ".join(self._not_finite[:3]), tuple(sorted(self._not_finite))
        error = GradientNotFinite(
            f"gradients of step {record.step} are NaN or infinite on rank {rank}, of {len(parameters)} parameters such "
            f"as {shown}. The servers have heard nothing of this step: begin it again with other gradients. Under a "
            "GradScaler use AllReduce or AllGather, where all members leave such a step out",
            ranks=(rank,),
            parameters=parameters,
            step=record.step,
        )
        with self._progress:
            self._attempt.over, self._attempt.failure = True, error
            self._record = None
        self._told.failed(record.step, error)
        raise error

    def wait(self) -> None:
        self._bound()
        self._require_step("there is no step to wait for")
        for name in self._model.not_ready():
            self._fill(name, None)
        self._refuse_not_finite()
        began = time.perf_counter()
        self._wait_for(self._attempt, frozenset(self._model.pieces))
        self._told.phase("wait", WHOLE_STEP, began)

    def _wait_for(self, attempt: Attempt, keys: frozenset[int]) -> None:
        """Wait until these pieces have come back."""
        since, num_done = time.monotonic(), -1
        look_at = since + _LOOK_S
        with self._progress:
            while not (attempt is self._attempt and keys <= self._done):
                if attempt.failure is not None:
                    raise attempt.failure
                if attempt is not self._attempt:
                    return  # a later step has begun, so this one was finished
                if len(self._done) != num_done:
                    since, num_done = time.monotonic(), len(self._done)
                waited_s = time.monotonic() - since
                if waited_s > self._timeout_s:
                    raise self._stalled(waited_s)
                if since + waited_s >= look_at:
                    look_at = since + waited_s + _LOOK_S
                    for courier, owned in zip(self._couriers, self._model.keys, strict=True):
                        courier.look(attempt, self._done.intersection(owned))
                self._progress.wait(min(_LOOK_S, self._timeout_s))
                self._told.waiting(time.monotonic() - since)

    def _stalled(self, waited_s: float) -> ExchangeStalled:
        group = self._bound().group
        names = sorted({name for courier in self._couriers for name in courier.missing})
        pieces = [piece for key, piece in self._model.pieces.items() if key not in self._done]
        parameters = sorted({part.name for piece in pieces for part in piece.piece.parts})
        who = ", ".join(names) or "nobody in particular: perhaps a server is gone"
        return ExchangeStalled(
            f"step {self._attempt.step} has waited {waited_s:.1f} s for {who}; missing are {', '.join(parameters)}",
            ranks=tuple(group.members.index(name) for name in names if name in group.members),
            tensors=tuple((group.rank, name) for name in parameters),
            waited_s=waited_s,
        )

    def finish(self) -> ExchangeReport:
        self.wait()
        record = self._record
        assert record is not None
        samples = 0.0
        for piece in self._model.pieces.values():
            piece.commit()
            samples = piece.samples
        self._attempt.over = True
        self._weighting.settle(record)
        samples = samples if record.total_samples is None else record.total_samples
        if self.settings.optimizer:
            self._model.write_weights()
        self._record = None
        self._model.gradients.clear()
        self._bound().next_step = record.step + 1
        self._told.ended(record.step)
        return self._ledger.finish(samples=samples, error_norm=self._model.error_norm)

    def abort(self, epoch: int) -> None:
        current = self._bound().group.epoch
        if epoch < current:
            return
        with self._progress:
            if self._is_enrolling:
                self._bound().interrupt()
                return
            aborted = ExchangeAborted(f"step {self._attempt.step} was taken back", epoch=current)
            if self._record is None:
                return
            self._attempt.over = True
            self._attempt.failure = self._attempt.failure or aborted
            self._record = None
            self._is_taken_back = True
            self._progress.notify_all()
        for at, keys in enumerate(self._model.keys):
            with self._codec[at]:  # wait for an encoding or decoding in progress
                for key in keys:
                    self._model.pieces[key].abort()
        self._told.failed(self._attempt.step, aborted)

    # Called from the threads of shard clients

    def encode(self, key: int, attempt: Attempt) -> Letter | None:
        """Encode a piece for a shard client to push."""
        piece, record, group = self._model.pieces[key], self._record, self._bound().group
        began = time.perf_counter()
        with self._codec[piece.piece.shard]:
            if attempt.over or record is None:
                return None
            message = piece.encode(record.step, group.rank, self._size, self._weight, record.scale)
            data = message.data.tobytes()
        group.traffic.add("push", sent=len(data), headers_sent=HEADER_BYTES)
        names = dict(zip(piece.piece.layout.names, (part.name for part in piece.piece.parts), strict=True))
        for cut_name, size in message.layers.items():
            group.traffic.add_layers({names[cut_name]: size})
        whole = message.num_values == piece.piece.layout.numel
        self._told.phase("encode", key, began)
        self._told.sent(key, "dense" if whole else "sparse", message.num_values)
        return Letter(attempt.step, data, self._weight)

    def deliver(self, answer: PullAnswer, attempt: Attempt) -> None:
        """Decode a server's answer for a piece, on behalf of a shard client."""
        piece, record = self._model.pieces[answer.key], self._record
        began = time.perf_counter()
        with self._codec[piece.piece.shard]:
            if attempt.over or record is None or answer.key in self._done:
                return
            self._weighting.check(record, answer.samples)
            piece.deliver(answer)
            if self.settings.optimizer is None:
                self._model.write_mean(answer.key, record.scale)
        if not self.settings.synchronous:
            self._size = answer.size
        self._bound().group.traffic.add("pull", received=len(answer.data))
        self._told.phase("decode", answer.key, began)
        with self._progress:
            self._done.add(answer.key)
            self._progress.notify_all()

    def enrol_again(self, shard: int) -> None:
        """Enrol again at a server that was restarted without this worker, on behalf of a shard client."""
        self._bound().enrol_again(shard)

    def failed(self, attempt: Attempt, error: BaseException) -> None:
        """Record that the attempt cannot succeed, on behalf of a shard client."""
        if isinstance(error, ServiceLost):
            lost = MemberLost(f"a parameter server is gone: {error}", epoch=attempt.epoch)
            lost.__cause__ = error
            error = lost
        with self._progress:
            if attempt is self._attempt and not attempt.over:
                attempt.over = True
                attempt.failure = error
                self._progress.notify_all()

    # State

    def errors(self) -> dict[str, Tensor]:
        self._bound()
        return self._model.errors()

    def take_errors(self, errors: Mapping[str, Tensor]) -> None:
        self._bound()
        self._model.take_errors(errors)

    def report(self) -> ExchangeReport:
        self._bound()
        return self._ledger.report()

    def state_dict(self) -> dict[str, Any]:
        return {"next_step": self.next_step, "weighting": self._weighting.last, **self._model.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        enrolment = self._bound()
        self._model.load_state_dict(state)
        self._weighting.last = state.get("weighting")
        enrolment.loaded()

    def close(self) -> None:
        if self._enrolment is None:
            return
        self._attempt.over = True
        for courier in self._couriers:
            courier.close()
        self._told.close()

    # Helpers

    def _bound(self) -> Enrolment:
        if self._enrolment is None:
            raise RuntimeError("this exchange is not bound to parameters yet; call bind first")
        return self._enrolment

    def _require_step(self, otherwise: str) -> None:
        if self._is_taken_back:
            raise ExchangeAborted(f"step {self._attempt.step} was taken back; regroup", epoch=self._attempt.epoch)
        if self._record is None:
            raise RuntimeError(f"{otherwise}; call begin first")

    def _tell_bound(self, group: Group) -> None:
        layouts = [piece.piece.layout for piece in self._model.pieces.values()]
        self._told.bind(layouts, group)


class _Ready(Work):
    """The work of one parameter's gradient."""

    def __init__(self, exchange: ParameterServer, attempt: Attempt, keys: frozenset[int]) -> None:
        self._exchange = exchange
        self._attempt = attempt
        self._keys = keys

    def wait(self) -> None:
        self._exchange._require_travel(self._keys)  # pyright: ignore[reportPrivateUsage]
        self._exchange._wait_for(self._attempt, self._keys)  # pyright: ignore[reportPrivateUsage]

    @property
    def done(self) -> bool:
        exchange = self._exchange
        return exchange._attempt is not self._attempt or self._keys <= exchange._done  # pyright: ignore[reportPrivateUsage]
