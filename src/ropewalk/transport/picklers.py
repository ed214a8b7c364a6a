"""The three picklers, and the rule that decides which objects travel as references.

    FastPickler    values without code: C speed, stops with `ByValue` at the first lambda or local class
    CodePickler    anything: lambdas, closures and unimportable classes by value, with cloudpickle's methods
    ResultPickler  results: like multiprocessing's, a lambda is an error

All three pickle functions and classes of `__main__` by reference and collect their names, whose values travel as
definitions (`serialization.define`). A `CodePickler` that writes the definition of a name pickles the object of that
name by value; a function of `__main__` then runs over the receiver's `__main__`, not over a copy of it.
"""

from __future__ import annotations

import copyreg
import dis
import functools
import inspect
import itertools
import opcode
import pickle
import re
import sys
import threading
import types
import weakref
from collections.abc import Callable
from io import TextIOWrapper
from typing import Any

import cloudpickle.cloudpickle

from ropewalk.transport.class_reduction import reduce_class
from ropewalk.transport.exception_reduction import reduce_exception
from ropewalk.transport.main_namespace import (
    IMPORTED,
    bind_definition,
    main_globals,
    main_reference,
    name_as_main,
    tracked_class,
)
from ropewalk.transport.reducers import BY_TYPE, NAMED, TENSOR_MODULES, TENSORS, TensorMemory, reduce_tensor
from ropewalk.transport.stand_ins import reduce_stand_in
from ropewalk.transport.standard_objects import STANDARD_MODULES, reduce_standard_object

_cloudpickle: Any = cloudpickle.cloudpickle  # untyped; its private parts are what we build on

_OF_EVERY_MODULE = frozenset(
    ["__name__", "__file__", "__package__", "__spec__", "__loader__", "__path__", "__cached__", "__builtins__"]
)
"""Names that every module has; `MainFacts` carries those that matter in a worker."""
_MISSING = object()


class ByValue(Exception):
    """The value holds code that can only travel by value, so `CodePickler` must take over."""


def root_in_main(obj: Any, qualname: str | None = None) -> str | None:
    """Return the first part of the path on which `obj` is found from `__main__`, or None if it is not there."""
    path = (qualname or obj.__qualname__).split(".")
    value: Any = main_globals().get(path[0], _MISSING)
    for name in path[1:]:
        value = getattr(value, name, _MISSING)
    return path[0] if value is obj else None


def _is_class(obj: Any) -> bool:
    return issubclass(type(obj), type)


class _NameCollector(pickle.Pickler):
    """Shared by the picklers: notes references into `__main__`, and takes tensors apart."""

    names: set[str] | None = None
    storages: dict[tuple[int, int], TensorMemory] | None = None
    definition: str | None = None
    """The name of `__main__` whose definition is being written; its object is not written as a reference."""

    def note(self, names: set[str]) -> None:
        """Note that the pickle refers to these names of `__main__`."""
        if self.names is None:
            self.names = set(names)
        else:
            self.names |= names

    def reducer_override(self, obj: object) -> Any:
        kind: type[Any] = type(obj)
        if kind is types.FunctionType or issubclass(kind, type):
            if obj.__module__ == IMPORTED:
                name_as_main(obj)
            return self.reduce_code(obj)
        module = kind.__module__
        if module == IMPORTED:
            name_as_main(kind)
            module = kind.__module__
        if module == "__main__":
            if isinstance(obj, BaseException) and (reduced := reduce_exception(obj)) is not NotImplemented:
                return reduced
            return self._reduce_main_instance(obj, kind)
        if kind in NAMED:
            return self._reduce_named(obj, kind)
        if module in TENSOR_MODULES and (module, kind.__name__) in TENSORS:
            if self.storages is None:
                self.storages = {}
            return reduce_tensor(obj, self.storages)
        if module in STANDARD_MODULES:
            return reduce_standard_object(obj, kind)
        return reduce_exception(obj) if isinstance(obj, BaseException) else NotImplemented

    def reduce_code(self, obj: Any) -> Any:
        """Reduce a function or class."""
        raise NotImplementedError

    def reference(self, root: str, qualname: str, obj: Any) -> Any:
        """Return the reduction of an object that is found at `qualname` in `__main__`."""
        self.note({root})
        if self.definition is None:
            return NotImplemented
        return main_reference, (qualname, _identity(obj))

    def _reduce_main_instance(self, obj: Any, kind: type[Any]) -> Any:
        # An object whose reduction is a string is saved as a global: the only case in which pickle refers to a name of
        # `__main__` without calling us, so we look first. In all other cases the result is what pickle would have got
        # itself.
        reduce = copyreg.dispatch_table.get(kind)
        reduced: Any = reduce(obj) if reduce is not None else obj.__reduce_ex__(5)
        if not isinstance(reduced, str):
            return reduced
        root = root_in_main(obj, reduced)
        if root is None or root == self.definition:
            return copyreg.__newobj__, (kind,), object.__getstate__(obj)  # type: ignore[attr-defined]
        reference = self.reference(root, reduced, obj)
        return reduced if reference is NotImplemented else reference

    def _reduce_named(self, obj: Any, kind: type[Any]) -> Any:
        qualname: str = getattr(obj, "__qualname__", None) or obj.__name__
        if obj.__module__ == "__main__":
            root = root_in_main(obj, qualname)
            if root is not None and root != self.definition:
                return self.reference(root, qualname, obj)
        return self.reduce_named(obj, qualname, NAMED[kind])

    def reduce_named(self, obj: Any, qualname: str, by_value: Callable[[Any], Any] | None) -> Any:
        """Reduce an object of `NAMED` that is not found in `__main__`; as a name unless overridden."""
        return NotImplemented


class FastPickler(_NameCollector):
    """Pickles references and data only."""

    def reduce_code(self, obj: Any) -> Any:
        if obj.__module__ != "__main__":
            return NotImplemented
        root = root_in_main(obj)
        if root is None:
            raise ByValue
        return self.reference(root, obj.__qualname__, obj)

    def reduce_named(self, obj: Any, qualname: str, by_value: Callable[[Any], Any] | None) -> Any:
        if obj.__module__ == "__main__":
            raise ByValue
        return NotImplemented


class ResultPickler(_NameCollector):
    """Pickles results as multiprocessing does, except that a class which came by value is sent back as itself."""

    def reduce_code(self, obj: Any) -> Any:
        if obj.__module__ == "__main__":
            root = root_in_main(obj)
            if root is not None:
                return self.reference(root, obj.__qualname__, obj)
        if _is_class(obj):
            tracker_id = _cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS.get(obj)
            if tracker_id is not None and _cloudpickle._lookup_module_and_qualname(obj) is None:
                return class_at_home, (tracker_id, obj.__qualname__)
        return NotImplemented


class CodePickler(_NameCollector, _cloudpickle.Pickler):
    """Pickles everything else: code by value."""

    dispatch_table: Any = _cloudpickle.Pickler.dispatch_table.new_child(BY_TYPE.copy())

    def __init__(self, file: Any, protocol: int, *, buffer_callback: Any, definition: str | None = None) -> None:
        _cloudpickle.Pickler.__init__(self, file, protocol, buffer_callback)
        self.definition = definition
        self._main = main_globals()

    def reducer_override(self, obj: object) -> Any:
        if self.definition is not None and (reduced := reduce_stand_in(obj)) is not NotImplemented:
            return reduced
        return _NameCollector.reducer_override(self, obj)

    def reduce_code(self, obj: Any) -> Any:
        if obj.__module__ == "__main__":
            root = root_in_main(obj)
            if root is not None:
                if root != self.definition:
                    return self.reference(root, obj.__qualname__, obj)
                if obj is self._main.get(root):
                    return self._bound(root, obj)
        return self._by_value(obj)

    def reduce_named(self, obj: Any, qualname: str, by_value: Callable[[Any], Any] | None) -> Any:
        if by_value is None or _cloudpickle._lookup_module_and_qualname(obj, name=qualname) is not None:
            return NotImplemented
        return by_value(obj)

    def _by_value(self, obj: Any) -> Any:
        reduced = _cloudpickle.Pickler.reducer_override(self, obj)
        if reduced is not NotImplemented and _is_class(obj):
            self._note_annotations(obj, self._main)
            return reduce_class(obj, reduced)
        return reduced

    def _bound(self, name: str, obj: Any) -> Any:
        # The value of the name itself: it is bound before its contents are read, so that cyclic references work.
        make, arguments, *rest = self._by_value(obj)
        tracker_id = _cloudpickle._get_or_create_tracker_id(obj) if _is_class(obj) else None
        return bind_definition, (name, tracker_id, make, *arguments), *rest

    def _dynamic_function_reduce(self, func: types.FunctionType) -> Any:
        if func.__globals__ is not self._main:
            return _cloudpickle.Pickler._dynamic_function_reduce(self, func)
        self.note({name for name in global_names(func.__code__) if name in self._main})
        self._note_annotations(func, self._main)
        attributes, slots = _cloudpickle._function_getstate(func)
        del slots["__globals__"]  # they are definitions of their own
        num_cells = len(func.__code__.co_freevars)
        return make_main_function, (func.__code__, num_cells), (attributes, slots), None, None, set_main_function_state

    def _note_annotations(self, obj: Any, main: dict[str, Any]) -> None:
        # Under `from __future__ import annotations` they are strings, which dataclass-like libraries evaluate later.
        # Only names that can be types are collected: an annotation must not bring a lock into the pickle.
        text = " ".join(hint for hint in inspect.get_annotations(obj).values() if isinstance(hint, str))
        types_named = {name for name in re.findall(r"\w+", text) if isinstance(main.get(name), type | types.ModuleType)}
        if types_named:
            self.note(types_named)


def _reduce_text_file(file: TextIOWrapper) -> Any:
    # cloudpickle sends the contents of a file that is open for reading; that hides a mistake and may be gigabytes.
    for name in ("stdout", "stderr"):
        if file is getattr(sys, name):
            return getattr, (sys, name)
    raise TypeError(f"cannot pickle {type(file).__module__ + '.' + type(file).__qualname__!r} object")


CodePickler.dispatch_table[TextIOWrapper] = _reduce_text_file

_GLOBAL_OPS = frozenset(
    opcode.opmap[name]
    # A class body inside a function loads globals with LOAD_NAME, and in 3.12 with LOAD_FROM_DICT_OR_GLOBALS.
    for name in ("LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
    if name in opcode.opmap
)


@functools.lru_cache(maxsize=4096)
def global_names(code: types.CodeType) -> frozenset[str]:
    """Return the global names that `code` and the code nested in it load, store or delete.

    Stored names count: an initializer's `global model` makes the name known before a later map sends `model = None`,
    which would otherwise overwrite it.
    """
    names = {instruction.argval for instruction in dis.get_instructions(code) if instruction.opcode in _GLOBAL_OPS}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= global_names(constant)
    return frozenset(names - _OF_EVERY_MODULE)


_serials: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_serials_lock = threading.Lock()
_next_serial = itertools.count(1)


def _identity(obj: Any) -> str:
    """Return a string that differs between an object and the one that later takes its name."""
    if _is_class(obj):
        return _cloudpickle._get_or_create_tracker_id(obj)
    try:
        with _serials_lock:
            if obj not in _serials:
                _serials[obj] = str(next(_next_serial))
            return _serials[obj]
    except TypeError:  # not hashable, or not weakly referenceable
        return ""


# Functions that pickles call. Their names are part of pickles: renaming one is a change of protocol.


def make_main_function(code: types.CodeType, num_cells: int) -> types.FunctionType:
    """Make a function over this process's `__main__`, with cells that are still empty."""
    closure = tuple(types.CellType() for _ in range(num_cells)) if num_cells else None
    return types.FunctionType(code, main_globals(), None, None, closure)


def set_main_function_state(func: types.FunctionType, state: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """Fill a function of `make_main_function`; the objects that it refers to exist by now."""
    attributes, slots = state
    func.__dict__.update(attributes)
    del slots["_cloudpickle_submodules"]  # they were listed only to be imported
    for mine, sent in zip(func.__closure__ or (), slots.pop("__closure__") or (), strict=True):
        try:
            mine.cell_contents = sent.cell_contents
        except ValueError:  # the variable has no value yet
            continue
    for name, value in slots.items():
        setattr(func, name, value)


def class_at_home(tracker_id: str, qualname: str) -> Any:
    """Return the class that left this process by value under `tracker_id`.

    Raises:
        UnpicklingError: this process did not send it, or has dropped it since.
    """
    known = tracked_class(tracker_id)
    if known is None:
        raise pickle.UnpicklingError(
            f"the result is an instance of {qualname!r}, a class that exists only in the worker or that was deleted "
            "here since it was sent; define it at the top level of a module or of the script"
        )
    return known
