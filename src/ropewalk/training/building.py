"""Build a model by its factory without its weights, or with some of them, bit for bit as in a complete build.

    build(factory, seed)              every parameter goes to meta as it is registered: shapes, no memory
    build(factory, seed, keep={7})    the parameter that was made as number 7 keeps its values
    build(factory, seed, keep=None)   all stay: the model as one process would have it

The factory runs unchanged each time, including its own initialisation (`reset_parameters`,
`self.apply(init)`, `nn.Parameter(torch.randn(...))`). Before each call that draws random
numbers, the generator is set to a seed of (seed, parameter, number of the call for it), so
that a parameter's initial values do not depend on which others are kept, and each stage of
a pipeline can make its own. A call is for a parameter if it writes to it, or is made within
a function that was given it: on meta, such a function may draw more or less often, or not
at all. A call that is for no parameter draws the same numbers in every process.

A parameter that is a copy of another (`nn.TransformerEncoder` copies the layer that it is
given) needs that one as well.

Buffers and other tensors keep their values, which could not be computed again (masks, tables
of rotary embeddings).
"""

from __future__ import annotations

import hashlib
import inspect
import random
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from ropewalk.errors import NotTraceable
from ropewalk.pipeline.tracing.compiled import unwrapped
from ropewalk.pipeline.tracing.named_tensors import table_of
from ropewalk.pipeline.tracing.random_calls import RandomCalls

Factory = Callable[[], nn.Module]
"""Makes a model; the same one in each process."""


@dataclass(frozen=True, slots=True)
class Built:
    """A model that was built."""

    model: nn.Module
    """The module in it, if the factory returned what `torch.compile` did."""
    numbers: Mapping[str, tuple[int, ...]]
    """For the name of each parameter (the first, if it has several), its number in order of creation, and the numbers
    of the parameters that it is a copy of: all must be kept for it to have its values."""
    returned: nn.Module
    """What the factory returned."""


def build(factory: Factory, seed: int, keep: Collection[int] | None = ()) -> Built:
    """Run a factory.

    Args:
        factory: returns a new module. It must do the same at each call, and not depend on the values of its parameters.
        seed: determines all random numbers in it. Afterwards, the generators of torch, numpy and Python are in the
            state they had before.
        keep: numbers of the parameters that are not put on meta; None: all.

    Returns:
        The model, and the numbers of its parameters.

    Raises:
        TypeError: the factory returned no module.
        NotTraceable: the factory reads values of parameters that are on meta.
    """
    making = _Making(keep)
    with _seeded(seed, making.number_for), making.watching():
        try:
            model: object = factory()
        except (NotImplementedError, RuntimeError) as error:
            if keep is None or "meta" not in str(error):
                raise
            raise NotTraceable(
                f"the factory needs numbers of parameters while it builds the model, and they are on meta then: "
                f"{error}. Leave that to later (.to(device) too), or give the trainer the model itself"
            ) from error
    if not isinstance(model, nn.Module):
        raise TypeError(f"the factory must return the model, a torch.nn.Module, and returned {type(model).__name__}")
    inner = unwrapped(model)
    if keep is not None:
        making.put_rest_on_meta(inner)
    return Built(inner, making.numbers(inner), model)


@dataclass(slots=True)
class _Making:
    """The parameters that modules register, and copies of them, in order of creation."""

    keep: Collection[int] | None
    _copied_from: dict[int, int] = field(default_factory=dict[int, int])
    """By number, the number of the parameter that it is a copy of."""
    _made: list[weakref.ref[nn.Parameter]] = field(default_factory=list[Any])
    """By number, the parameter in the model. Weak, so that a parameter that the model drops is freed at once."""
    _known: dict[int, tuple[weakref.ref[nn.Parameter], int]] = field(default_factory=dict[int, Any])
    """By id of the registered parameter, or of its storage: the parameter, and its number."""

    @contextmanager
    def watching(self) -> Generator[None]:
        """Watch the parameters that this thread creates."""
        thread = threading.get_ident()
        deepcopy: Callable[..., nn.Parameter] = cast(Any, nn.Parameter).__deepcopy__

        def registering(_: nn.Module, __: str, parameter: nn.Parameter) -> nn.Parameter | None:
            return self._registered(parameter) if threading.get_ident() == thread else None

        def copying(parameter: nn.Parameter, memo: dict[int, Any]) -> nn.Parameter:
            number = self._number_of(parameter)
            if threading.get_ident() != thread or number is None or id(parameter) in memo:
                return deepcopy(parameter, memo)
            self._copied_from[len(self._made)] = number
            copied = deepcopy(parameter, memo) if self._keeps(len(self._made)) else _on_meta(parameter)
            self._note(copied, copied)
            return memo.setdefault(id(parameter), copied)

        handle = register_module_parameter_registration_hook(cast(Any, registering))
        cast(Any, nn.Parameter).__deepcopy__ = copying  # torch has no hook for copies
        try:
            yield
        finally:
            cast(Any, nn.Parameter).__deepcopy__ = deepcopy
            handle.remove()

    def _registered(self, parameter: nn.Parameter) -> nn.Parameter:
        if (number := self._number_of(parameter)) is not None:
            stands = self._made[number]()
            return parameter if stands is None else stands
        if isinstance(parameter, nn.UninitializedParameter):
            return parameter
        keeps = self._keeps(len(self._made)) or parameter.is_meta
        return self._note(parameter, parameter if keeps else _on_meta(parameter))

    def _note(self, parameter: nn.Parameter, stands: nn.Parameter) -> nn.Parameter:
        number = len(self._made)
        self._made.append(weakref.ref(stands))
        for one in (parameter, stands):
            self._known[id(one)] = self._known[id(one.untyped_storage())] = weakref.ref(one), number
        return stands

    def _keeps(self, number: int) -> bool:
        return self.keep is None or number in self.keep

    def _number_of(self, tensor: Tensor, *, or_part: bool = False) -> int | None:
        """Return the number of a parameter, or of the parameter that a tensor is a part of."""
        itself, number = self._known.get(id(tensor), (None, None))
        if itself is not None and itself() is tensor:
            return number
        if or_part:
            storage = tensor.untyped_storage()
            itself, number = self._known.get(id(storage), (None, None))
            if itself is not None and (alive := itself()) is not None and alive.untyped_storage() is storage:
                return number
        return None

    def number_for(self, written: object) -> int | None:
        """Return the parameter that a random call, made above us and writing to this, is for; None: for none."""
        if isinstance(written, Tensor) and (number := self._number_of(written, or_part=True)) is not None:
            return number
        frame = inspect.currentframe()
        while frame is not None and frame.f_code is not build.__code__:
            names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
            values = frame.f_locals if frame.f_code.co_filename != __file__ else {}
            for value in map(values.get, names):
                if isinstance(value, Tensor) and (number := self._number_of(value, or_part=True)) is not None:
                    return number
            frame = frame.f_back
        return None

    def put_rest_on_meta(self, model: nn.Module) -> None:
        """Put parameters on meta that entered the model without being registered."""
        changed: dict[int, nn.Parameter] = {}
        for module in model.modules():
            table = table_of(module, "_parameters")
            for name, tensor in table.items():
                if isinstance(tensor, nn.Parameter) and not tensor.is_meta and self._number_of(tensor) is None:
                    table[name] = changed.setdefault(id(tensor), _on_meta(tensor))

    def numbers(self, model: nn.Module) -> dict[str, tuple[int, ...]]:
        """Return, for each parameter of the model, the numbers that must be kept for it."""
        found: dict[str, tuple[int, ...]] = {}
        for name, parameter in model.named_parameters():
            chain: list[int] = []
            number = self._number_of(parameter)
            while number is not None:
                chain.append(number)
                number = self._copied_from.get(number)
            if chain:
                found[name] = tuple(chain)
        return found


def _on_meta(parameter: nn.Parameter) -> nn.Parameter:
    empty = nn.Parameter(torch.empty_like(parameter, device="meta"), parameter.requires_grad)
    vars(empty).update(vars(parameter))
    return empty


@contextmanager
def _seeded(seed: int, number_for: Callable[[object], int | None]) -> Generator[None]:
    """Make random numbers depend on the seed and on their purpose; restores the generators afterwards."""
    num_calls: Counter[int | None] = Counter()

    def before_call(written: object, generator: torch.Generator | None) -> None:
        number = number_for(written)
        digest = hashlib.blake2b(f"{seed}/{number}/{num_calls[number]}".encode(), digest_size=8).digest()
        num_calls[number] += 1
        own = int.from_bytes(digest, "little") >> 1
        if generator is None:
            torch.manual_seed(own)  # pyright: ignore[reportUnknownMemberType]
        else:
            generator.manual_seed(own)

    numpy: Any = sys.modules.get("numpy")
    python_state, numpy_state = random.getstate(), None if numpy is None else numpy.random.get_state()
    random.seed(seed)
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
    try:
        with cast(Any, torch.random).fork_rng(), RandomCalls(before_call):
            yield
    finally:
        random.setstate(python_state)
        if numpy is not None:
            numpy.random.set_state(numpy_state)
