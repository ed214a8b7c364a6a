"""Values as the parts of a message; large ones as a memory file.

A `Frozen` value is pickled once, and sent with the same memory file to all callers on the host.

Between threads of one process values need not be copied: at the ends of a `Handover` the message carries only a token,
and unpickling the token gives the object itself.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, cast
from weakref import WeakKeyDictionary, WeakValueDictionary

import msgspec

from ropewalk.calls.frozen import Frozen
from ropewalk.transport.array_pickles import learn, loads_arrays
from ropewalk.transport.blobs import SHARED_MIN_BYTES, descriptors_are_scarce, open_parts, pack
from ropewalk.transport.descriptors import Descriptors
from ropewalk.transport.frames import Part
from ropewalk.transport.link import Link, Received
from ropewalk.transport.pickle_with_main import dumps_with_code
from ropewalk.transport.serialization import Payload, dumps, loads

Keep = Callable[[Sequence[Part]], object]
"""Called with the pickled values that come with an answer."""

_ATOMS = frozenset([int, float, bool, str, bytes])


class _Bytes:
    """Pickles as bytes that are stored beside the pickle."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def __reduce__(self) -> Any:
        return bytes, (pickle.PickleBuffer(self._content),)


_BYTES_OF_BUFFER = pickle.dumps(_Bytes(b""), 5, buffer_callback=lambda _buffer: None)
"""The pickle of any bytes object whose content is its only buffer."""


class PackedValue(msgspec.Struct, eq=False):  # made without a step of the interpreter, as it is made for each call
    """A value that is ready to be sent, any number of times."""

    parts: Sequence[Part]
    shared: tuple[int, ...] = ()
    fds: Descriptors | None = None
    """A memory file that holds the value, in place of the parts."""

    def close(self) -> None:
        """Close the memory file, if there is one; may be called twice."""
        if self.fds:
            self.fds.close()

    def unfolded(self) -> PackedValue:
        """The same value without its memory file, for a link that carries no descriptors."""
        assert self.fds
        return PackedValue(open_parts(os.dup(self.fds[0]), self.shared, writable=False))

    def again(self, link: Link | None) -> PackedValue:
        """The same value, to be sent again, on `link` if it is known; memory files share the same memory.

        Raises:
            OSError: no file descriptors are available.
        """
        if not self.fds:
            return self
        if link and not link.stream.carries_fds:
            return self.unfolded()
        return PackedValue((), self.shared, Descriptors([os.dup(self.fds[0])]))

    def copied(self) -> PackedValue:
        """As `unfolded`, in this process's own memory; the memory file is closed."""
        copy = PackedValue([bytes(part) for part in self.unfolded().parts])
        self.close()
        return copy


_EMPTY_CALL = PackedValue(())


class Handover:
    """The objects that are under way in a program of threads that copies nothing.

    Objects that are never taken out (answers to calls that were given up, or made with `send`) are kept until the
    program is released: this mode is for debugging.
    """

    in_use: ClassVar[bool] = False
    """Whether there has ever been one in this process; asked first, as nearly all calls have nothing to do with it."""

    def __init__(self) -> None:
        Handover.in_use = True
        self._id = next(_numbers)
        self._objects: dict[int, Any] = {}
        _handovers[self._id] = self

    def join(self, link: Link) -> None:
        """From now on hand over the objects that are sent on this link."""
        _ends[link] = self

    def put(self, value: Any) -> PackedValue:
        """Keep an object until it is taken, and pickle its token."""
        number = next(_numbers)
        self._objects[number] = value
        return PackedValue((pickle.dumps(_Token(self._id, number), 5),))

    def take(self, number: int) -> Any:
        """Take out an object that was put here; once."""
        return self._objects.pop(number)


class _Token:
    """Stands for an object in a pickle; unpickling it gives the object."""

    def __init__(self, handover: int, number: int) -> None:
        self._place = handover, number

    def __reduce__(self) -> Any:
        return _take, self._place


def _take(handover: int, number: int) -> Any:
    return _handovers[handover].take(number)


_numbers = itertools.count(1)
_handovers: WeakValueDictionary[int, Handover] = WeakValueDictionary()
_ends: WeakKeyDictionary[Link, Handover] = WeakKeyDictionary()


def pack_arguments(
    link: Link | Handover | None,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    keep: bool,
    with_code: bool = False,
    shared: Frozen[Any] | None = None,
) -> PackedValue:
    """Pickle the arguments of a call.

    Args:
        link: the link on which they will be sent; if it is not known yet, the handover of its end, or None.
        args: positional arguments.
        kwargs: keyword arguments; if there are any, the value is the pair of both.
        keep: whether to copy buffers in the caller's memory, because the caller may change them before they are sent.
        with_code: whether to include the code that they need from `__main__`.
        shared: made by `shared_arguments`; all calls with the same one are pickled once.

    Raises:
        NotPicklable: an argument cannot be sent; `path` says which.
    """
    if not args and not kwargs:
        return _EMPTY_CALL  # no parts
    value = (args, kwargs) if kwargs else args
    if Handover.in_use and (handover := _ends.get(link) if isinstance(link, Link) else link):
        return handover.put(value)
    assert not isinstance(link, Handover)
    if shared and not with_code:
        return _pack_frozen(link, shared, "arguments")
    return _packed(link, (dumps_with_code if with_code else dumps)(value, what="arguments"), keep)


def shared_arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Frozen[Any]:
    """The arguments of several calls, as they are when the first of these is pickled."""
    return Frozen((args, kwargs) if kwargs else args)


def atom(item: Any) -> bytes | None:
    """Return the pickle of a number, a string or bytes that no other process has to know anything of; None for others.

    Large bytes are others: they go to a memory file without being pickled.
    """
    if type(item) in _ATOMS and (type(item) is not bytes or len(item) < SHARED_MIN_BYTES):
        return pickle.dumps(item, 5)
    return None


def pack_item(link: Link | None, item: Any) -> PackedValue:
    """Pickle an item that processes pass on unopened, with the code that it needs from `__main__`.

    Its buffers are the item's own memory: the caller waits until they are sent.

    Raises:
        NotPicklable: it cannot be sent; `path` says which part.
    """
    content = atom(item)
    if content is not None:
        return PackedValue((content,))
    if type(item) is bytes:
        return _packed(link, Payload(_BYTES_OF_BUFFER, (memoryview(item),), frozenset()), False)
    return _packed(link, dumps_with_code(item), False)


def pack_value(link: Link, value: Any, *, with_code: bool = False, keep: bool = True) -> PackedValue:
    """Pickle a returned or yielded value.

    Args:
        link: the link on which it will be sent.
        value: the value.
        with_code: whether to include the code that it needs from `__main__`.
        keep: whether to copy buffers in the value's memory, because it may change before they are sent.

    Raises:
        NotPicklable: it cannot be sent; `path` says which part.
    """
    if type(value) in _ATOMS:
        return PackedValue((pickle.dumps(value, 5),))
    handover = _ends.get(link) if Handover.in_use else None
    if type(value) is Frozen:
        frozen = cast("Frozen[Any]", value)
        if not (handover or with_code):
            return _pack_frozen(link, frozen, "result")
        value = frozen.value
    if handover:
        return handover.put(value)
    return _packed(link, (dumps_with_code if with_code else dumps)(value, what="result"), keep)


def unpack(received: Received, shared: tuple[int, ...]) -> Any:
    """The value of a message. Arrays are the receiver's own and writable.

    A message without parts has a descriptor as its value, which the caller closes, or None if there is no descriptor.
    """
    parts = received.parts
    if shared:
        parts = open_parts(received.fds.take(), shared, writable=True)
    if not parts:
        return received.fds.take() if received.fds else None
    return unpack_parts(parts)


def unpack_parts(parts: Sequence[Part]) -> Any:
    """The value that lies in one or more parts. Arrays are the receiver's own and writable."""
    if len(parts) == 1:
        return loads(parts[0])
    # Small frames arrive as bytes, and the buffers of values must be writable.
    buffers = [bytearray(part) if type(part) is bytes else part for part in parts[1:]]
    pickled = parts[0]
    if type(pickled) is not bytes:
        return loads(pickled, buffers)
    value = loads_arrays(pickled, buffers)
    if value is None:
        value = loads(pickled, buffers)
        learn(pickled, buffers, value)
    return value


def _pack_frozen(link: Link | None, frozen: Frozen[Any], what: str) -> PackedValue:
    with frozen.lock:
        packed: PackedValue | None = frozen.packed
        if packed is None:
            packed = _packed(None, dumps(frozen.value, what=what), True)
            if packed.fds and descriptors_are_scarce(packed.fds[0]):  # so each of them is needed for links
                return packed if link is None or link.stream.carries_fds else packed.unfolded()
            frozen.packed = packed
    return packed.again(link)


def _packed(link: Link | None, payload: Payload, keep: bool) -> PackedValue:
    if not payload.buffers and len(payload.pickle) < SHARED_MIN_BYTES:
        return PackedValue((payload.pickle,))
    parts: list[Part] = [payload.pickle, *payload.buffers]
    if payload.size_bytes >= SHARED_MIN_BYTES and (link is None or link.stream.carries_fds):
        with contextlib.suppress(OSError):  # no descriptors or memory for it: the value stays inside the frame
            file = Descriptors([pack(parts, "ropewalk-call")])
            return PackedValue((), tuple(memoryview(part).nbytes for part in parts), file)
    return PackedValue([bytes(part) for part in parts] if keep else parts)


__all__ = [
    "Handover",
    "Keep",
    "PackedValue",
    "atom",
    "pack_arguments",
    "pack_item",
    "pack_value",
    "shared_arguments",
    "unpack",
    "unpack_parts",
]
