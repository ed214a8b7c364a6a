"""`attach`: gradients of a DistributedDataParallel model travel through an exchange, by a communication hook.

    backward ─▶ DDP fills a bucket ─▶ hook: enqueue, return a Future ─▶ backward continues
                                          └▶ communication thread ─▶ exchange ─▶ Future is done ─▶ DDP copies back

The hook only enqueues, because chains of `.then` on Futures would begin collectives in another order on every rank,
and hang. DDP makes other buckets after the first iteration; state is kept by the names that parameters have when the
hook is attached, so it is carried over exactly. DDP leaves the division by the world size to the hook.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ropewalk.errors import ExchangeInvalid
from ropewalk.exchange.bucketed import BucketedExchange
from ropewalk.exchange.buckets import BucketEntry, Layout
from ropewalk.exchange.compressors.compressor import Compressor
from ropewalk.exchange.exchange import Exchange, ExchangeReport, StepRecord
from ropewalk.exchange.exchange_maker import make_exchange
from ropewalk.exchange.groups.torch_group import TorchGroup


class HookGradScaler(Protocol):
    """The part of `torch.amp.GradScaler` that this module uses."""

    def get_scale(self) -> float: ...


class GradBucket(Protocol):
    """The part of DDP's bucket, a class that torch does not export, that this module uses."""

    def index(self) -> int: ...

    def is_last(self) -> bool: ...

    def buffer(self) -> Tensor: ...

    def parameters(self) -> list[Tensor]: ...


class CommHookHandle:
    """The exchange that `attach` has given to a DDP model, until `detach`.

    Attributes:
        error: the error of the last backward, as it was raised; DDP turns its text into a RuntimeError.
    """

    def __init__(
        self,
        model: DistributedDataParallel,
        exchange: BucketedExchange,
        timeout_s: float,
        scaler: HookGradScaler | None,
    ) -> None:
        named = _parameters_of(model)
        if not named:
            raise ExchangeInvalid("no parameter of this model requires a gradient, so there is nothing to exchange")
        _refuse_sparse_gradients(model, named)
        self._names = {id(parameter): name for name, parameter in named}
        self._layouts: dict[tuple[int, ...], Layout] = {}
        self._scaler = scaler
        self._process_group: Any = cast(Any, model).process_group
        self._group = TorchGroup(self._process_group, timeout_s=timeout_s, device=named[0][1].device.type)
        self._exchange: BucketedExchange | None = exchange
        self.error: BaseException | None = None
        exchange.uniform = True
        exchange.bind(named, self._group)

    def __repr__(self) -> str:
        return f"<CommHookHandle {self._exchange!r}>" if self._exchange else "<CommHookHandle, detached>"

    @property
    def exchange(self) -> BucketedExchange:
        """The exchange; its step lasts from the first bucket of a backward to its last."""
        if self._exchange is None:
            raise RuntimeError("the exchange was detached from this model; attach() another one")
        return self._exchange

    @property
    def attached(self) -> bool:
        """Whether `detach` has not been called."""
        return self._exchange is not None

    @property
    def skipped(self) -> bool:
        """Whether all members skipped the last step because of NaN or infinity; its gradients are zeros."""
        return self.exchange.skipped

    def report(self) -> ExchangeReport:
        """Return costs and effects of all steps so far."""
        return self.exchange.report()

    def state_dict(self) -> dict[str, Any]:
        """Return the state from which this rank can resume later, by parameter name; each rank has its own."""
        self.exchange.take_back_failed_step()
        return self.exchange.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a state; call it on all ranks."""
        self.exchange.take_back_failed_step()
        self.exchange.load_state_dict(state)

    def detach(self) -> None:
        """Return to plain averages by DDP's own process group, on all ranks; may be called twice."""
        if self._exchange is not None:
            self._exchange.close()
            self._exchange = None
            self._group.close()

    def carry(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """Begin to exchange a bucket of DDP; the communication hook calls this."""
        if self._exchange is None:
            return _average(self._process_group, bucket)
        flat = bucket.buffer()
        if bucket.index() == 0:
            scale, scaled = (1.0, False) if self._scaler is None else (self._scaler.get_scale(), True)
            self._exchange.open_carried(StepRecord(self._exchange.next_step, scale=scale, scaled=scaled))
        done: torch.futures.Future[BaseException | None] = torch.futures.Future(
            devices=[flat.device] if flat.device.type == "cuda" else None
        )

        def result(future: torch.futures.Future[BaseException | None]) -> Tensor:
            self.error = future.value()
            if self.error is not None:
                raise self.error
            return flat

        # An error that a callback raises is raised by backward; a value given to `set_exception` DDP takes for a
        # tensor.
        future = done.then(result)
        self._exchange.carry(
            bucket.index(), self._layout_of(bucket, flat), flat, last=bucket.is_last(), done=done.set_result
        )
        return future

    def _layout_of(self, bucket: GradBucket, flat: Tensor) -> Layout:
        parameters = bucket.parameters()
        key = tuple(map(id, parameters))
        if key not in self._layouts:
            # The buffer's dtype, because mixed precision reduces in another dtype than the parameters'.
            self._layouts[key] = Layout(
                tuple(
                    BucketEntry(self._names[id(parameter)], tuple(parameter.shape), flat.dtype, str(flat.device))
                    for parameter in parameters
                )
            )
        return self._layouts[key]


_ATTACHED: weakref.WeakKeyDictionary[DistributedDataParallel, list[CommHookHandle]] = weakref.WeakKeyDictionary()
"""DDP accepts one hook per model for good, so that hook calls the handle that is attached to the model now."""


def attach(
    ddp_model: DistributedDataParallel,
    exchange: str | Compressor | Exchange,
    *,
    timeout_s: float = 300.0,
    grad_scaler: HookGradScaler | None = None,
) -> CommHookHandle:
    """Let gradients of a DDP model travel through an exchange.

        model = DistributedDataParallel(net)
        attached = attach(model, GDSEC(c=100, beta=0.01))
        ...                                                  the training loop as it is
        print(attached.report())

    Call it on every rank, before the first backward. no_sync, unused parameters, static graphs, gradients as bucket
    views and join work as without it; a rank that has joined takes part with zeros.

    Args:
        ddp_model: the model.
        exchange: an `AllReduce` or `AllGather`, or a compressor, or its name.
        timeout_s: seconds that a rank waits for the others before the step fails.
        grad_scaler: the scaler that scales the gradients; the exchange keeps its state without the scale.

    Returns:
        The handle of the attached exchange, for reports, checkpoints and `detach`.

    Raises:
        ExchangeInvalid: the exchange cannot be used by a hook, the model has one already, or an embedding of it makes
            sparse gradients.
    """
    made = make_exchange(exchange)
    if not isinstance(made, BucketedExchange):
        raise ExchangeInvalid(
            f"{type(made).__name__} cannot be called by a hook of DDP; use AllReduce or AllGather, or "
            "DistributedOptimizer(optimizer, exchange) with the model itself"
        )
    slot = _ATTACHED.get(ddp_model)
    if slot and slot[0].attached:
        raise ExchangeInvalid("this model has an exchange already; detach() that one first")
    attached = CommHookHandle(ddp_model, made, timeout_s, grad_scaler)
    if slot is None:
        slot = _ATTACHED.setdefault(ddp_model, [])
        cast(Any, ddp_model).register_comm_hook(slot, _hook)
    slot[:] = [attached]
    return attached


def _hook(slot: list[CommHookHandle], bucket: GradBucket) -> torch.futures.Future[Tensor]:
    return slot[0].carry(bucket)


# DDP compares annotations with classes, and cannot read annotations that are text.
_hook.__annotations__.clear()


def _average(process_group: Any, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """Average a bucket as DDP does by default."""
    flat = bucket.buffer().mul_(1.0 / process_group.size())
    work: Any = cast(Any, dist).all_reduce(flat, group=process_group, async_op=True)
    return work.get_future().then(_first)


def _first(future: Any) -> Tensor:
    return future.value()[0]


def _refuse_sparse_gradients(model: DistributedDataParallel, named: Iterable[tuple[str, Tensor]]) -> None:
    """Raise `ExchangeInvalid` if DDP will give the hook sparse tensors: the rows of an embedding that were used."""
    exchanged = {id(parameter) for _, parameter in named}
    for name, part in cast(Any, model).module.named_modules():
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse and id(part.weight) in exchanged:
            raise ExchangeInvalid(
                f"the {type(part).__name__} {name!r} makes sparse gradients, which an exchange does not carry; make it "
                "with sparse=False: TopK and GDSEC send only what has changed of it"
            )


def _parameters_of(model: DistributedDataParallel) -> list[tuple[str, Tensor]]:
    """Return the parameters that DDP puts into buckets, by their names in the user's module."""
    ignored: set[str] = cast(Any, model).parameters_to_ignore
    module: nn.Module = cast(Any, model).module
    return [
        (name, parameter)
        for name, parameter in module.named_parameters()
        if parameter.requires_grad and name not in ignored
    ]
