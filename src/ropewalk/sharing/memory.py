"""Values and arrays in memory that processes of one host share: `multiprocessing.Value`, `Array` and the raw ones.

    RawValue ─ ctypes over ─▶ mapping ◀─ ctypes over ─ its copy in another process       reading and writing is memory
    Value    = RawValue + a lock in the same memory                                       see `host_lock.py`

They are bound to their host. If they arrive on another one, or if this process runs on no host of the run, `WrongHost`
says what to use instead. Small values share a page, because mappings and descriptors are limited.
"""

from __future__ import annotations

import copyreg
import ctypes
import mmap
import os
import threading
import weakref
from typing import Any, cast

from ropewalk.errors import PeerLost, WrongHost
from ropewalk.processes import bootstrap
from ropewalk.processes.session import Session
from ropewalk.processes.shared_sessions import session_of
from ropewalk.sharing.host_lock import HOST_LOCK_BYTES, are_host_locks_possible, host_lock
from ropewalk.sharing.locks import RLock
from ropewalk.sharing.membership import member_of, member_of_run, on_fork
from ropewalk.sharing.shared_object import ObjectLocation, SharedObject, create
from ropewalk.sharing.synchronized import synchronized
from ropewalk.transport.address import HostAddress, parse_address

_SHEET_BYTES = 64 << 10
"""Small values are cut from sheets of this size; no part of a sheet is reused."""
_SMALL_BYTES = 4 << 10
"""A larger value gets memory of its own."""
_ALIGN = 64
"""No two values share a cache line."""
_TYPES: dict[str, Any] = {
    "c": ctypes.c_char,
    "u": ctypes.c_wchar,
    "b": ctypes.c_byte,
    "B": ctypes.c_ubyte,
    "h": ctypes.c_short,
    "H": ctypes.c_ushort,
    "i": ctypes.c_int,
    "I": ctypes.c_uint,
    "l": ctypes.c_long,
    "L": ctypes.c_ulong,
    "q": ctypes.c_longlong,
    "Q": ctypes.c_ulonglong,
    "f": ctypes.c_float,
    "d": ctypes.c_double,
}


class Memory(SharedObject):
    """A handle of memory of this host.

    Args:
        size_bytes: the size of the memory.
        session: the session of its run; by default that of this process.

    Raises:
        WrongHost: this process is on no host of the run.
        StartFailed: there is no depot to hold it, and none can be started.
    """

    def __init__(self, size_bytes: int, *, session: Session | None = None) -> None:
        (reference,) = create("memory", size_bytes, label="memory", session=session)
        SharedObject.__init__(self, reference, is_new=True)
        here, there = _host_of_this_process(reference.run_id), _host_of(reference)
        if here != there:
            raise WrongHost(
                f"shared memory would be on the host of {there}, and this process is not ({here or 'another host'}); "
                f"{_INSTEAD}, or make it in a process there"
            )
        self._map(self._ask("place"), size_bytes)

    def _map(self, place: str, size_bytes: int) -> None:
        self.place = place
        self.size_bytes = size_bytes
        self.num_used = 0
        """How many bytes of a sheet are given to values."""
        mapping = _mappings.get(self._reference)
        if mapping is None:
            mapping = _mappings[self._reference] = self._mapped()
        self.mapping = mapping

    def _mapped(self) -> mmap.mmap:
        fd = self.open()
        try:
            return mmap.mmap(fd, max(1, self.size_bytes))
        finally:
            os.close(fd)

    def open(self) -> int:
        """Return a descriptor of its file, with an open file description of its own; the caller closes it.

        Raises:
            PeerLost: the depot that held it is gone.
        """
        try:
            return os.open(self.place, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            problem = f"the memory at {self.place} is gone, with the depot that held it"
            raise PeerLost(problem, peer=self.place) from None

    def __reduce__(self) -> Any:
        return _arrived, (self._lend(), self.place, self.size_bytes)


def _arrived(reference: ObjectLocation, place: str, size_bytes: int) -> Memory:
    memory = Memory.__new__(Memory)
    SharedObject.__init__(memory, reference)
    here, there = _host_of_this_process(reference.run_id), _host_of(reference)
    if here != there:
        raise WrongHost(
            f"a value or array in the memory of {there} was sent to {here}, where it cannot be reached; {_INSTEAD}"
        )
    memory._map(place, size_bytes)  # pyright: ignore[reportPrivateUsage]
    return memory


_INSTEAD = (
    "use ropewalk.Manager().Value(...) or .Array(...), which all hosts reach, or send arrays through a ropewalk.Queue()"
)
_mappings: weakref.WeakValueDictionary[ObjectLocation, mmap.mmap] = weakref.WeakValueDictionary()
"""The memory that this process has mapped, each object once."""
_sheets: weakref.WeakValueDictionary[str, Memory] = weakref.WeakValueDictionary()
"""For each run, the sheet that is being cut up, which lives as long as its values."""
_cutting = threading.Lock()


def _host_of_this_process(run_id: str) -> str:
    """Return the id of this process's host in the run; "" if the run has only one host."""
    here = bootstrap.current
    if here is not None:
        return here.passport.host if here.passport else ""
    session = member_of_run(run_id).session
    return session.passport.host if session and session.passport else ""


def _host_of(reference: ObjectLocation) -> str:
    address = parse_address(reference.address)
    return address.host if isinstance(address, HostAddress) else ""


def _allocate(size_bytes: int, session: Session | None) -> tuple[Memory, int]:
    """Return zeroed memory, and the offset of `size_bytes` free bytes in it."""
    if size_bytes > _SMALL_BYTES:
        return Memory(size_bytes, session=session), 0
    member = member_of(session)
    with _cutting:
        sheet = _sheets.get(member.run_id)
        is_full = sheet is not None and sheet.num_used + size_bytes > sheet.size_bytes
        if sheet is None or is_full or member.caller.known(sheet._reference.address) is None:  # pyright: ignore[reportPrivateUsage]
            sheet = _sheets[member.run_id] = Memory(_SHEET_BYTES, session=session)
        offset = sheet.num_used
        sheet.num_used += -(-size_bytes // _ALIGN) * _ALIGN
        return sheet, offset


def _forget_sheets() -> None:
    """Forget the sheets in a forked child: its parent goes on cutting them up."""
    global _cutting
    _cutting = threading.Lock()
    _sheets.clear()


on_fork.append(_forget_sheets)


# ctypes objects over memory


def _new(type_: Any, session: Session | None) -> Any:
    return _over(*_allocate(_lock_after(0, type_) + HOST_LOCK_BYTES, session), type_)


def _lock_after(offset: int, type_: Any) -> int:
    """Return the offset of an object's lock: next to it, because a process that owns the lock accesses the object."""
    return -(-(offset + ctypes.sizeof(type_)) // HOST_LOCK_BYTES) * HOST_LOCK_BYTES


def _over(memory: Memory, offset: int, type_: Any) -> Any:
    copyreg.dispatch_table.setdefault(type_, _reduce)
    obj = type_.from_buffer(memory.mapping, offset)
    obj._ropewalk_memory = (memory, offset)
    return obj


def _reduce(obj: Any) -> Any:
    """Pickle objects of types that have been shared; objects that are not shared are pickled as usual."""
    place = obj.__dict__.get("_ropewalk_memory")
    return (_rebuild, (*place, _lengths_of(type(obj)))) if place else obj.__reduce_ex__(5)


def _lengths_of(type_: Any) -> tuple[Any, ...]:
    """Describe an array type by its element's type and its lengths: it has no name by which it could be found."""
    lengths: list[int] = []
    while issubclass(type_, ctypes.Array):
        kind = cast("Any", type_)
        lengths.append(kind._length_)
        type_ = kind._type_
    return (type_, *reversed(lengths))


def _rebuild(memory: Memory, offset: int, kind: tuple[Any, ...]) -> Any:
    type_, *lengths = kind
    for length in lengths:
        type_ = type_ * length
    return _over(memory, offset, type_)


# Public functions


def RawValue(typecode_or_type: Any, *args: Any, session: Session | None = None) -> Any:
    """Make a ctypes object in shared memory.

    Args:
        typecode_or_type: a ctypes type, or a type code of `array.array`.
        args: arguments of its constructor; without any it is zeroed.
        session: the session of its run; by default that of this process.

    Returns:
        The ctypes object.

    Raises:
        WrongHost: this process is on no host of the run.
        StartFailed: there is no depot to hold it, and none can be started.
    """
    made = _new(_TYPES.get(typecode_or_type, typecode_or_type), session)
    made.__init__(*args)
    return made


def RawArray(typecode_or_type: Any, size_or_initializer: Any, *, session: Session | None = None) -> Any:
    """Make an array of ctypes objects in shared memory.

    Args:
        typecode_or_type: the type of its elements: a ctypes type, or a type code of `array.array`.
        size_or_initializer: the number of elements, all zero; or a sequence of their initial values.
        session: the session of its run; by default that of this process.

    Returns:
        The ctypes array.

    Raises:
        WrongHost, StartFailed: as `RawValue`.
    """
    type_ = _TYPES.get(typecode_or_type, typecode_or_type)
    if isinstance(size_or_initializer, int):
        return _new(type_ * size_or_initializer, session)
    made = _new(type_ * len(size_or_initializer), session)
    made.__init__(*size_or_initializer)
    return made


def Value(typecode_or_type: Any, *args: Any, lock: Any = True, session: Session | None = None, ctx: Any = None) -> Any:
    """Make a ctypes object in shared memory with a lock around it.

    `value += 1` reads and writes, each under the lock but not both: write `with value.get_lock(): value.value += 1`.

    Example:
        >>> import ropewalk as rw
        >>> total = rw.Value("i", 40)
        >>> with total.get_lock():
        ...     total.value += 2
        >>> total.value
        42

    Args:
        typecode_or_type: a ctypes type, or a type code of `array.array`.
        args: arguments of its constructor; without any it is zeroed.
        lock: True for a new RLock in the same memory; a lock; or False for none, as `RawValue` does.
        session: the session of its run; by default that of this process.
        ctx: a context whose session is used instead; a context of multiprocessing has no effect.

    Returns:
        The object in its `Synchronized` wrapper.

    Raises:
        AttributeError: `lock` is not a lock.
        WrongHost, StartFailed: as `RawValue`.
    """
    session = session or session_of(ctx)
    return _locked(RawValue(typecode_or_type, *args, session=session), lock, session)


def Array(
    typecode_or_type: Any,
    size_or_initializer: Any,
    *,
    lock: Any = True,
    session: Session | None = None,
    ctx: Any = None,
) -> Any:
    """Make an array of ctypes objects in shared memory with a lock around it.

    Example:
        >>> import ropewalk as rw
        >>> rates = rw.Array("d", [0.1, 0.2, 0.3])  # float64
        >>> rates[0] = 0.5
        >>> rates[:]
        [0.5, 0.2, 0.3]

    Args:
        typecode_or_type: the type of its elements: a ctypes type, or a type code of `array.array`.
        size_or_initializer: the number of elements, all zero; or a sequence of their initial values.
        lock: as in `Value`.
        session: the session of its run; by default that of this process.
        ctx: a context whose session is used instead; a context of multiprocessing has no effect.

    Returns:
        The array in its `SynchronizedArray` or `SynchronizedString` wrapper.

    Raises:
        AttributeError, WrongHost, StartFailed: as `Value`.
    """
    session = session or session_of(ctx)
    return _locked(RawArray(typecode_or_type, size_or_initializer, session=session), lock, session)


def _locked(obj: Any, lock: Any, session: Session | None) -> Any:
    if lock is False:
        return obj
    if lock is True or lock is None:
        memory, offset = obj._ropewalk_memory
        lock = host_lock(memory, _lock_after(offset, obj)) if are_host_locks_possible() else RLock(session=session)
    if not hasattr(lock, "acquire"):
        raise AttributeError(
            f"{lock!r} has no method 'acquire': pass a ropewalk.RLock(), True for a lock of its own, or False"
        )
    return synchronized(obj, lock)


def copy(obj: Any, *, session: Session | None = None) -> Any:
    """Copy a ctypes object into new shared memory; see `multiprocessing.sharedctypes.copy`."""
    made = _new(type(obj), session)
    ctypes.pointer(made)[0] = obj
    return made


__all__ = ["Array", "Memory", "RawArray", "RawValue", "Value", "copy"]
