"""Many calls as one: arguments are stacked on a new first axis, and the result is taken apart along it.

    act(obs_0) ─┐                       ┌─▶ result[0]
    act(obs_1) ─┼─▶ act(stacked) ─▶ result ─▶ result[1]
    act(obs_2) ─┘                       └─▶ result[2]

    argument of one call           argument of the batch
    numpy array, torch tensor      one of them, with the calls as its first axis
    number, numpy scalar           numpy array of numbers; a list where numpy is not loaded
    dict, list, tuple, dataclass   the same, of batches
    anything else (str, None)      list

Pure, and without numpy or torch: an array can only have come from a library that is loaded.
"""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections import Counter, deque
from collections.abc import Hashable, Sequence
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def stack(calls: Sequence[Arguments]) -> Arguments:
    """The arguments of the one call that stands for all of these.

    Args:
        calls: positional and keyword arguments of each, one or more, which fit together (`split_compatible`).
    """
    args = tuple(_stack(column) for column in zip(*(args for args, _ in calls), strict=True))
    return args, {name: _stack([kwargs[name] for _, kwargs in calls]) for name in calls[0][1]}


def unstack(result: Any, num_calls: int) -> list[Any]:
    """What each of the calls gets of the result of their batch.

    Arrays are taken apart along their first axis, lists by item, and dicts, tuples and
    dataclasses part by part. None is for everybody.

    Raises:
        ValueError: a part of the result has another length than the batch.
        TypeError: a part of the result is nothing that can be taken apart.
    """
    return _unstack(result, num_calls, "its result")


def split_compatible(calls: Sequence[Arguments]) -> tuple[list[int], dict[int, ValueError]]:
    """Which of these calls can be one batch, and for each of the others an error that says why not.

    The batch is what most of them agree on; if two forms are as frequent, the one that came first.
    """
    forms = [_form(call) for call in calls]
    if len(set(forms)) <= 1:
        return list(range(len(calls))), {}
    chosen = Counter(forms).most_common(1)[0][0]  # of equals, the first
    fitting = [index for index, form in enumerate(forms) if form == chosen]
    model = calls[fitting[0]]
    odd = {
        index: ValueError(
            f"this call does not fit into a batch with {len(fitting)} other{'s' * (len(fitting) > 1)}: "
            f"{_difference(call, model)}; the calls of a batched method need arguments of one form"
        )
        for index, call in enumerate(calls)
        if forms[index] != chosen
    }
    return fitting, odd


class BatchQueue(Generic[T]):
    """Gathers calls of one method until there are enough of them or the first has waited long enough. Pure.

    One batch runs at a time. Calls that come meanwhile gather, and their waiting
    counts; so under load the next batch goes as soon as the one before it is done.

    Args:
        max_size: of a batch.
        max_wait_s: how long a call waits at most for others, beside those that run.
    """

    def __init__(self, max_size: int, max_wait_s: float) -> None:
        self._max_size = max_size
        self._max_wait_s = max_wait_s
        self._waiting: deque[tuple[float, T]] = deque()
        self._running = False

    def add(self, item: T, now: float) -> list[T]:
        """A call has come: the batch to run now, or nothing."""
        self._waiting.append((now, item))
        return self.due(now)

    def due(self, now: float) -> list[T]:
        """The batch to run now, because it is full or has waited long enough; or nothing. `done` must follow it."""
        due = self.next_due
        if due is None or (len(self._waiting) < self._max_size and now < due):
            return []
        self._running = True
        return [self._waiting.popleft()[1] for _ in range(min(self._max_size, len(self._waiting)))]

    def done(self, now: float) -> list[T]:
        """The batch that ran is done: the next one to run now, or nothing."""
        self._running = False
        return self.due(now)

    @property
    def next_due(self) -> float | None:
        """When `due` is to be asked; None while a batch runs or nothing waits."""
        return self._waiting[0][0] + self._max_wait_s if self._waiting and not self._running else None

    def discard(self, item: T) -> bool:
        """A call was given up; False if it does not wait here."""
        for index, (_, waiting) in enumerate(self._waiting):
            if waiting is item:
                del self._waiting[index]
                return True
        return False

    def take(self) -> list[T]:
        """Everything that waits, for the end of the service."""
        items = [item for _, item in self._waiting]
        self._waiting.clear()
        return items

    def __len__(self) -> int:
        return len(self._waiting)

    def __bool__(self) -> bool:
        return True  # also while it is empty: `if queue` asks whether there is one


# Values are the user's, so they are Any from here on.


def _stack(values: Sequence[Any]) -> Any:
    first = values[0]
    library = _library(first)
    if library is not None:
        return library.stack(values)
    if _is_number(first):
        return _numbers(values)
    parts = _parts(first)
    if parts is None:
        return list(values)
    columns = [_parts(value) or {} for value in values]
    return _rebuilt(first, {key: _stack([column[key] for column in columns]) for key in parts})


def _numbers(values: Sequence[Any]) -> Any:
    numpy: Any = sys.modules.get("numpy")
    if numpy is None:
        return list(values)
    array = numpy.asarray(values)
    # Whole numbers that fit into no type of numpy's would lose digits as floats.
    whole = all(isinstance(value, int) for value in values)
    return array if array.dtype.kind in ("biu" if whole else "biufc") else list(values)


def _unstack(result: Any, num_calls: int, path: str) -> list[Any]:
    if result is None:
        return [None] * num_calls
    entries: Any = None  # per call
    if _library(result) is not None:
        entries = result if result.shape else ()
    elif isinstance(result, list):
        entries = cast("list[Any]", result)
    if entries is not None:
        if len(entries) != num_calls:
            raise ValueError(
                f"a batch of {num_calls} calls needs a result for each, but {path} is {_words(result)}; "
                f"it needs one entry per call, in their order"
            )
        return list(entries)
    parts = _parts(result)
    if parts is None:
        raise TypeError(
            f"a batch of {num_calls} calls needs a result for each, but {path} is {_words(result)}; return an array "
            f"or a list with one entry per call, or a dict, tuple or dataclass of such"
        )
    columns = {key: _unstack(part, num_calls, _inner(path, result, key)) for key, part in parts.items()}
    return [_rebuilt(result, {key: column[index] for key, column in columns.items()}) for index in range(num_calls)]


def _library(value: Any) -> Any:
    """The library whose array this is, or None."""
    for name, kind in (("numpy", "ndarray"), ("torch", "Tensor")):
        library = sys.modules.get(name)
        if isinstance(value, getattr(library, kind, ())):
            return library
    return None


def _is_number(value: Any) -> bool:
    if isinstance(value, int | float | complex):
        return True
    numpy = sys.modules.get("numpy")
    return isinstance(value, (getattr(numpy, "number", ()), getattr(numpy, "bool_", ())))


def _parts(value: Any) -> dict[Any, Any] | None:
    """What a container holds, by key, position or field; None if it is none."""
    if isinstance(value, dict):
        return cast("dict[Any, Any]", value)
    if isinstance(value, list | tuple):
        return dict(enumerate(cast("Sequence[Any]", value)))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None


def _rebuilt(like: Any, parts: dict[Any, Any]) -> Any:
    """A container like this one, with other parts."""
    if isinstance(like, dict):
        return parts
    if isinstance(like, list):
        return list(parts.values())
    if isinstance(like, tuple):
        make: Any = getattr(cast("Any", like), "_make", tuple)  # named tuples have one
        return make(parts.values())
    # Not by its constructor, which may check what is true of one call only.
    made = copy.copy(like)
    for name, part in parts.items():
        object.__setattr__(made, name, part)  # also if it is frozen
    return made


def _form(value: Any) -> Hashable:
    """What must be equal in all calls of a batch."""
    library = _library(value)
    if library is not None:
        return library.__name__, tuple(value.shape), value.dtype, str(getattr(value, "device", ""))
    if _is_number(value):
        return "number"
    parts = _parts(value)
    if parts is None:
        return "other"
    if isinstance(value, dict):
        return dict, frozenset((key, _form(part)) for key, part in parts.items())
    return _kind(value), tuple(_form(part) for part in parts.values())


def _kind(value: object) -> type[object]:
    return type(value)


def _difference(call: Arguments, model: Arguments) -> str:
    """The first place where two calls of different form differ, in words."""
    (args, kwargs), (other_args, other_kwargs) = call, model
    if len(args) != len(other_args):
        return f"it has {len(args)} positional arguments, theirs have {len(other_args)}"
    if kwargs.keys() != other_kwargs.keys():
        return f"its keyword arguments are {sorted(kwargs)}, theirs are {sorted(other_kwargs)}"
    return _first_difference(args, other_args, "args") or _first_difference(kwargs, other_kwargs, "kwargs")


def _first_difference(value: Any, model: Any, path: str) -> str:
    if _form(value) == _form(model):
        return ""
    parts, others = _parts(value), _parts(model)
    alike = _kind(value) is _kind(model) or (isinstance(value, dict) and isinstance(model, dict))
    if alike and parts is not None and others is not None and parts.keys() == others.keys():
        for key, part in parts.items():
            difference = _first_difference(part, others[key], _inner(path, value, key))
            if difference:
                return difference
    return f"{path} is {_words(value)}, theirs is {_words(model)}"


def _inner(path: str, container: Any, key: Any) -> str:
    if dataclasses.is_dataclass(container):
        return f"{path}.{key}"
    return f"{path}[{key!r}]"


def _words(value: Any) -> str:
    if _library(value) is not None:
        device = str(getattr(value, "device", "cpu"))
        where = "" if device == "cpu" else f" on {device}"
        return f"an array of shape {tuple(value.shape)} and type {value.dtype}{where}"
    if isinstance(value, dict):
        keys = cast("dict[Any, Any]", value)
        return f"a dict with the keys {', '.join(map(repr, keys)) or 'none'}"
    if isinstance(value, list | tuple):
        items = cast("Sequence[Any]", value)
        return f"a {_kind(items).__name__} of {len(items)}"
    return f"of type {_kind(value).__name__}"
