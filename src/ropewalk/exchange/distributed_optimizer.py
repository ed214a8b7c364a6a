"""`DistributedOptimizer`: any optimizer of torch, stepping with gradients averaged over the members of a group.

    optimizer = DistributedOptimizer(SGD(model.parameters(), lr=0.1), AllReduce(), model.named_parameters())
    broadcast_parameters(model, optimizer.group)
    for x, y in batches:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()     buckets travel while it runs; it returns with averaged gradients
        optimizer.step()
    optimizer.join()                        where other members have more batches

The interface is Horovod's (Sergeev and Del Balso, Horovod: fast and easy distributed deep learning in TensorFlow, 2018,
https://arxiv.org/abs/1802.05799). It departs in two points that surprised users: gradients are averaged when `backward`
returns, so clipping and a GradScaler need no `synchronize` first; and members that have joined take the same steps as
the others, so all members end with the same weights.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any, Protocol, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from ropewalk.errors import ExchangeInvalid
from ropewalk.exchange.backward_passes import BackwardPasses
from ropewalk.exchange.buckets import BucketEntry
from ropewalk.exchange.compressors.compressor import Compressor
from ropewalk.exchange.exchange import Exchange, ExchangeReport, StepRecord
from ropewalk.exchange.exchange_maker import make_exchange
from ropewalk.exchange.groups.group import Group
from ropewalk.exchange.groups.torch_group import TorchGroup
from ropewalk.exchange.parameter_server.parameter_server import ParameterServer
from ropewalk.exchange.same_parameters import require_same_parameters
from ropewalk.exchange.tuning import ExchangeTuner


class _Skipped(Exception):
    """Leaves the step of the wrapped optimizer before it changes anything."""


class OptimizerGradScaler(Protocol):
    """The part of `torch.amp.GradScaler` that this module uses."""

    def scale(self, outputs: Tensor, /) -> Tensor: ...

    def get_scale(self) -> float: ...

    def step(self, optimizer: Optimizer, /) -> Any: ...

    def update(self) -> None: ...


class DistributedOptimizer(Optimizer):
    """An optimizer of torch whose gradients are averaged over a group before each step.

    It is an `Optimizer` itself: schedulers, GradScaler and hooks accept it, and attributes that it does not define are
    those of the wrapped optimizer. A parameter without a gradient on this member takes part with zeros, and still
    receives the mean of the others' gradients. One that is frozen takes part from when every member has called its
    `requires_grad_(True)`.

    Example:
        >>> import torch
        >>> import ropewalk as rw
        >>> def member(group):  # each of two threads; under torchrun or in a RankGroup, leave out `group=`
        ...     weight = torch.nn.Parameter(torch.zeros(2))
        ...     sgd = torch.optim.SGD([weight], lr=1.0)
        ...     optimizer = rw.exchange.DistributedOptimizer(sgd, rw.exchange.AllReduce(), group=group)
        ...     (weight * torch.tensor([1.0, 3.0 * group.rank])).sum().backward()
        ...     optimizer.step()
        ...     return weight.tolist()
        >>> rw.exchange.run_members(rw.exchange.ThreadGroup.make(2), member)
        [[-1.0, -1.5], [-1.0, -1.5]]

    Args:
        optimizer: the optimizer of torch to wrap, on parameters of this process.
        exchange: how gradients are exchanged: an exchange, a compressor, or the name of one, bound at the first step.
        named_parameters: the parameters and their names, the same on every member, such as `model.named_parameters()`.
            None: the names that the optimizer knows, else "group.position".
        group: the members: some of the processes (a process set) or all; None: all of torch.distributed.
        backward_passes_per_step: number of backward passes whose gradients are summed locally before the exchange. As
            in plain torch, divide the loss by this number for a mean.
        grad_scaler: the scaler that scales the loss, so that compressors keep their state in unscaled gradients.
        partial: leave parameters without a name alone: they stay local, or belong to another DistributedOptimizer that
            wraps this one, such as experts that are averaged over a smaller group.
        autotune: search for the fastest bucket size, and factor `c` of GD-SEC, during the first steps.

    Attributes:
        samples: weight of this member's gradients in the mean; set it before `backward` where batches differ in size.
        last_report: the report of the last exchange; None before the first.
        group: the group whose members take part.

    Raises:
        ExchangeInvalid: names do not fit the parameters of the optimizer, or a count is below 1.
    """

    # The scaler then divides the gradients itself: it would set the flags of fused optimizers on this wrapper only.
    _step_supports_amp_scaling = False

    def __init__(
        self,
        optimizer: Optimizer,
        exchange: Exchange | Compressor | str,
        named_parameters: Iterable[tuple[str, Tensor]] | None = None,
        group: Group | None = None,
        *,
        backward_passes_per_step: int = 1,
        grad_scaler: OptimizerGradScaler | None = None,
        partial: bool = False,
        autotune: bool = False,
    ) -> None:
        # super().__init__ is not called: `param_groups`, `state` and hooks, which it would make, are the wrapped
        # optimizer's.
        if backward_passes_per_step < 1:
            raise ExchangeInvalid(f"backward_passes_per_step is at least 1, not {backward_passes_per_step}")
        self._optimizer = optimizer
        self._exchange = make_exchange(exchange)
        if isinstance(self._exchange, ParameterServer) and self._exchange.settings.optimizer is not None:
            raise ExchangeInvalid(
                f"the server steps already, by {self._exchange.settings.optimizer!r}, and {type(optimizer).__name__} "
                "would step once more; call bind, begin, ready and finish of the exchange instead, or leave out the "
                "optimizer of the server"
            )
        self._passes_per_step = backward_passes_per_step
        self._grad_scaler = grad_scaler
        self._partial = partial
        named = _named_parameters(optimizer, named_parameters, partial=partial)
        self._named = {name: parameter for name, parameter in named.items() if parameter.requires_grad}
        self._frozen = {name: parameter for name, parameter in named.items() if name not in self._named}
        self.group: Group | TorchGroup = group or TorchGroup()
        self._backward = BackwardPasses(self._pass_began, self._accumulated, self._pass_ended)
        for name, parameter in self._named.items():
            self._backward.watch(name, parameter)
        self._bound = self._compared = False
        self._tuner = ExchangeTuner(self._exchange, self.group) if autotune else None
        self._step = 0
        self._passes = 0  # backward passes since gradients last travelled
        self._syncs = True  # False within no_sync
        self._open: set[str] | None = None  # names of the gradients that are ready in the open step
        self._local = False  # some computed gradients have not travelled yet
        self._averaged = False  # the gradients come from an exchange, and no step was taken with them
        self.samples: float = 1.0
        self.last_report: ExchangeReport | None = None

    def __getattr__(self, name: str) -> Any:
        if name == "_optimizer":
            raise AttributeError(name)  # a copy that is being made has none yet
        return getattr(self._optimizer, name)

    def __repr__(self) -> str:
        exchange = type(self._exchange).__name__
        return f"DistributedOptimizer({exchange}, rank {self.group.rank} of {self.group.size}, {self._optimizer!r})"

    # Steps.

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Take a step with averaged gradients; skip it if NaN on any member made it void (`nan="skip"`).

        Args:
            closure: computes the loss again; the loss is averaged too, so that all members take the same decisions.

        Returns:
            What the wrapped optimizer's `step` returns; None if the step is skipped.
        """
        if closure is not None:
            return self._step_with(closure)
        self.synchronize()
        return self._take_step()

    def synchronize(self) -> None:
        """Exchange gradients that have not been sent yet: after `no_sync`, too few passes, or no backward at all.

        Raises:
            RuntimeError: the previous backward ended with an error; call `zero_grad` first.
        """
        if self._backward.active and self._open is None:
            raise RuntimeError("the previous backward ended with an error; call zero_grad() before the next one")
        if self._open is not None:
            self._finish()
        elif self._local or not self._averaged:
            has_gradients = any(parameter.grad is not None for parameter in self._named.values())
            self._begin(self.samples if has_gradients else 0.0)
            self._finish()

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._abort()  # the step of a backward that ended with an error, if there is one
        self._optimizer.zero_grad(set_to_none)
        self._local = self._averaged = False
        self._passes = 0

    @contextlib.contextmanager
    def no_sync(self) -> Generator[None]:
        """Add up gradients locally in this context; the next backward outside it exchanges the sum."""
        before, self._syncs = self._syncs, False
        try:
            yield
        finally:
            self._syncs = before

    def join(self, after_step: Callable[[], Any] | None = None) -> int:
        """Take part in the steps of members that have more batches, until no member has any.

        Every member calls this after its last batch. It adds nothing to the mean and takes the same steps as the
        others, so that weights stay the same everywhere.

        Args:
            after_step: called after each of those steps, such as the `step` of a learning-rate scheduler.

        Returns:
            The rank that had batches longest, the highest if several did; its buffers are the ones to broadcast, for
            example.
        """
        own_steps = self._step
        while True:
            self.zero_grad()
            self._begin(0.0, joined=True)
            if self._finish().all_joined:
                break
            if self._grad_scaler is None:
                self._take_step()
            else:
                self._grad_scaler.scale(torch.zeros((), device=next(iter(self._named.values())).device))
                self._grad_scaler.step(self)
                self._grad_scaler.update()
            if after_step is not None:
                after_step()
        self.zero_grad()
        told = self.group.all_gather(memoryview(b""), [own_steps], "join")
        return max((steps, rank) for rank, (_, (steps,)) in enumerate(told))[1]

    # The interface for schedulers, checkpoints and reports.

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group; every member does so at the same step. The exchange's state is kept."""
        self._optimizer.add_param_group(param_group)
        if self._partial:
            return
        for name, parameter in _names_of_group(self._optimizer, len(self._optimizer.param_groups) - 1):
            if name in self._named or name in self._frozen:
                raise ExchangeInvalid(f"a parameter of the name {name!r} is there already; give (name, tensor) pairs")
            if not parameter.requires_grad:
                self._frozen[name] = parameter
                continue
            self._named[name] = parameter
            self._backward.watch(name, parameter)
        if self._bound:
            self._exchange.close()
            self._bound = self._compared = False

    def state_dict(self) -> dict[str, Any]:
        """Return the wrapped optimizer's state, with this member's exchange state under "exchange"."""
        self._bind()
        return {**self._optimizer.state_dict(), "exchange": self._exchange.state_dict(), "exchange_step": self._step}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore a state saved by this class or by a plain optimizer."""
        state = dict(state_dict)
        exchange = state.pop("exchange", None)
        self._step = int(state.pop("exchange_step", self._step))
        self._optimizer.load_state_dict(state)
        if exchange is not None:
            self._bind()
            self._exchange.load_state_dict(exchange)

    def replicated_state(self) -> dict[str, Any]:
        """Return the state that is the same on every member, as a member that joins later needs it."""
        return {**self._optimizer.state_dict(), "exchange_step": self._step}

    def report(self) -> ExchangeReport:
        """Return costs and effects of all exchanges so far."""
        return self._exchange.report()

    def close(self) -> None:
        """Stop taking part and close the exchange; the group stays open. May be called twice."""
        self._abort()
        self._backward.close()
        self._exchange.close()

    # The exchange of gradients.

    def _pass_began(self) -> None:
        self._local = True
        if self._syncs:
            self._passes += 1
            if self._passes >= self._passes_per_step and self._open is None:
                self._begin(self.samples)

    def _accumulated(self, name: str, parameter: Tensor) -> None:
        if self._open is not None:
            self._ready(name, parameter)

    def _pass_ended(self, inside: bool) -> bool:
        if self._open is not None:
            if inside and len(self._open) < len(self._named):
                return False
            self._finish()
        return True

    def _bind(self) -> None:
        if not self._bound:
            self._exchange.bind(self._named.items(), self.group)
            self._bound = True

    def _take_thawed(self) -> None:
        """Let parameters take part that were frozen, and now require a gradient."""
        thawed = {name: parameter for name, parameter in self._frozen.items() if parameter.requires_grad}
        for name, parameter in thawed.items():
            del self._frozen[name]
            self._named[name] = parameter
            self._backward.watch(name, parameter)
        if thawed and self._bound:
            self._exchange.close()
            self._bound = self._compared = False

    def _begin(self, samples: float, *, joined: bool = False) -> None:
        if self._frozen:
            self._take_thawed()
        self._bind()
        if not self._compared and self.group.size > 1:
            require_same_parameters(self.group, [BucketEntry.of(name, tensor) for name, tensor in self._named.items()])
        self._compared = True
        scale = self._grad_scaler.get_scale() if self._grad_scaler is not None else 1.0
        scaled = self._grad_scaler is not None
        self._exchange.begin(
            StepRecord(self._step, version=self._step, samples=samples, scale=scale, scaled=scaled, joined=joined)
        )
        self._open = set()

    def _ready(self, name: str, parameter: Tensor) -> None:
        assert self._open is not None
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        self._exchange.ready(name, parameter.grad)
        self._open.add(name)

    def _finish(self) -> ExchangeReport:
        """Send gradients that are not ready as they are, and wait for the mean of all of them."""
        assert self._open is not None
        try:
            for name in [name for name in reversed(self._named) if name not in self._open]:
                self._ready(name, self._named[name])
            report = self._exchange.finish()
        except BaseException:
            self._abort()
            raise
        self._open = None
        self._step += 1
        self._passes = 0
        self._local, self._averaged = False, True
        self.last_report = report
        if self._tuner is not None:
            self._tuner.after_step()
        return report

    def _abort(self) -> None:
        self._backward.reset()
        if self._open is not None:
            self._open = None
            self._exchange.abort(self.group.epoch)

    def _take_step(self) -> Any:
        self._averaged = False
        if self.last_report is not None and self.last_report.skipped:
            return None
        return self._optimizer.step()

    def _step_with(self, closure: Callable[[], Any]) -> Any:
        has_begun = False

        def averaged() -> Tensor:
            nonlocal has_begun
            loss = self._averaged_loss(closure)
            # Later in a step the weights may be those of a trial, and an optimizer that sees zeros goes back or ends.
            if not has_begun and self.last_report is not None and self.last_report.skipped:
                raise _Skipped
            has_begun = True
            return loss

        try:
            return cast(Any, self._optimizer).step(averaged)
        except _Skipped:
            return None

    def _averaged_loss(self, closure: Callable[[], Any]) -> Tensor:
        loss = torch.as_tensor(closure()).detach()
        self.synchronize()
        self._averaged = False
        own = struct.pack("<2d", float(loss), self.samples)
        told = [struct.unpack("<2d", data) for data, _ in self.group.all_gather(memoryview(own), [], "loss")]
        total = sum(samples for _, samples in told) or 1.0
        return loss.new_tensor(sum(value * samples for value, samples in told) / total)


def _named_parameters(
    optimizer: Optimizer, named_parameters: Iterable[tuple[str, Tensor]] | None, *, partial: bool
) -> dict[str, Tensor]:
    """Return the parameters to exchange by name, in the order of the model, those included that are frozen now.

    Raises:
        ExchangeInvalid: a name occurs twice, or a parameter of the optimizer has no name.
    """
    groups = range(len(optimizer.param_groups))
    pairs = list(named_parameters or (pair for index in groups for pair in _names_of_group(optimizer, index)))
    named = dict(pairs)
    if len({name for name, _ in pairs}) < len(pairs):
        names = [name for name, _ in pairs]
        raise ExchangeInvalid(f"two parameters have the same name: {sorted({n for n in names if names.count(n) > 1})}")
    known = {id(parameter) for _, parameter in pairs}
    for number, group in enumerate(optimizer.param_groups):
        for position, parameter in enumerate(cast(list[Tensor], group["params"])):
            if parameter.requires_grad and id(parameter) not in known and not partial:
                raise ExchangeInvalid(
                    f"parameter {position} of group {number} of the optimizer, of shape {tuple(parameter.shape)}, is "
                    "not in named_parameters and would differ between members; name it, or say partial=True"
                )
    return named


def _names_of_group(optimizer: Optimizer, index: int) -> list[tuple[str, Tensor]]:
    """Return names and tensors of one parameter group of an optimizer, with its own names where it has any."""
    group = optimizer.param_groups[index]
    tensors = cast(list[Tensor], group["params"])
    names = cast(list[str], group.get("param_names") or [f"{index}.{position}" for position in range(len(tensors))])
    return list(zip(names, tensors, strict=True))
