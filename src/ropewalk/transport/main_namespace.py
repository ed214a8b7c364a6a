"""One `__main__` per worker: the namespace that all code of one pool shares.

The worker never runs the user's script again. Its `__main__` is an empty
module that is filled with definitions, each the pickled value of one name:

    sender's __main__                             worker's __main__
    ┌──────────────────────┐                      ┌──────────────────────┐
    │ evaluate, Model, np  │ ── definitions ────▶ │ evaluate, Model, np  │
    └──────────────────────┘   (name -> pickle)   └──────────────────────┘
       task: `__main__.evaluate`, by reference ──▶ looked up there

A definition is applied only if its bytes differ from those that were last received for its name. So a `global` that an
initializer set survives the next map, and a function, class or variable that the sender redefined takes effect.

Definitions refer to one another (`class B(A)`), in any order and in circles.
`main_reference` therefore defines a name when it is first asked for, and
`bind_definition` puts a class or function into the namespace before its
contents are read.
"""

from __future__ import annotations

import builtins
import hashlib
import importlib.machinery
import pickle
import sys
import threading
import types
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import cloudpickle.cloudpickle
import msgspec

from ropewalk.surroundings import as_sent, sendable
from ropewalk.transport.habits import habits, take_over

_cloudpickle: Any = cloudpickle.cloudpickle  # untyped; its private parts are what we build on

Definition = tuple[Any, Sequence[Any]]
"""What a receiver gets for one name: the pickle, and its out-of-band buffers."""


class MainFacts(msgspec.Struct, frozen=True):
    """What code may ask of its `__main__` apart from its own names; sent as plain data."""

    file: str | None = None
    """`__file__`, or None for `-c`, the REPL and notebooks."""
    package: str | None = None
    """`__package__`, which relative imports inside functions of `python -m pkg.mod` need."""
    spec: str | None = None
    """Name of the module that `python -m` runs, or None."""
    doc: str | None = None
    """The module's docstring, which command line parsers print."""
    argv: tuple[str, ...] = ()
    """`sys.argv` of the sender."""
    habits: bytes = b""
    """How the sender logs and warns; see `habits.py`. Empty: not sent."""


def main_facts() -> MainFacts:
    """Describe the `__main__` of this process, for `MainNamespace` in another."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    return MainFacts(
        file=sendable(file) if (file := getattr(main, "__file__", None)) is not None else None,
        package=getattr(main, "__package__", None),
        spec=spec.name if spec else None,
        doc=main.__doc__,
        argv=tuple(map(sendable, sys.argv)),
        habits=habits(),
    )


class MainNamespace:
    """The `__main__` of a worker process; making one replaces `sys.modules["__main__"]`.

    There is one per process, made before any user code is loaded.
    """

    def __init__(self, facts: MainFacts) -> None:
        module = types.ModuleType("__main__", facts.doc)
        module.__dict__["__builtins__"] = builtins
        module.__package__ = facts.package
        file = as_sent(facts.file) if facts.file is not None else None
        if file is not None:
            module.__file__ = file
        if facts.spec is not None:
            module.__spec__ = importlib.machinery.ModuleSpec(facts.spec, None, origin=file)
        if facts.argv:
            sys.argv[:] = map(as_sent, facts.argv)
        self._names = module.__dict__
        self._digests: dict[str, bytes] = {}
        self._pending: dict[str, Definition] = {}
        self._depth: dict[str, int] = {}
        self._bound: set[str] = set()
        self._of_source: dict[tuple[str, str], dict[str, Any]] = {}
        self._lock = threading.RLock()
        self._replaced = sys.modules.get("__main__")  # its functions may still run, as those of the fork server
        sys.modules["__main__"] = module
        _here.namespace = self
        if facts.habits:
            take_over(facts.habits)

    def install(self, definitions: Mapping[str, Definition]) -> None:
        """Set each name to its value, unless the same bytes were the last ones received for it.

        Raises:
            Exception: whatever unpickling a value raised, with a note that names the
                definition. Names that were not reached are tried again the next time.
        """
        with self._lock:
            digests = {name: _digest(*definition) for name, definition in definitions.items()}
            new = {name: digest for name, digest in digests.items() if self._digests.get(name) != digest}
            if not new:
                return
            self._pending = {name: definitions[name] for name in new}
            self._bound = set()
            try:
                self._install_all(list(new))
            finally:
                # A name that failed, or was not reached, still counts as not received.
                self._digests.update({name: new[name] for name in new if name not in self._pending})
                self._pending = {}
                self._depth = {}
                self._bound = set()

    def _install_all(self, names: list[str]) -> None:
        while names:
            postponed: list[str] = []
            missing: NameError | None = None
            for name in names:
                self._depth = {}
                try:
                    self.resolve(name)
                except NameError as error:
                    # Loading it called a function (such as `__setstate__`) that uses a global which is defined later.
                    postponed.append(name)
                    missing = missing or error
            if missing is not None and len(postponed) == len(names):
                raise missing
            names = postponed

    def resolve(self, name: str) -> None:
        """Define `name` now if its definition is pending."""
        with self._lock:
            if name not in self._pending:
                return
            # The second time, the names that led here are bound (`class B(A)` with `A.child = B`), and B can be made;
            # the outer load then uses the B that was made here. A third time nothing would change.
            depth = self._depth[name] = self._depth.get(name, 0) + 1
            if depth > 2:
                raise pickle.UnpicklingError(f"the definition of {name!r} in __main__ needs itself before it exists")
            pickled, buffers = self._pending[name]
            try:
                value = pickle.loads(pickled, buffers=buffers)  # noqa: S301  # from an authenticated peer
            except BaseException as error:
                self._pending[name] = pickled, buffers
                error.add_note(f"while defining {name!r} in the worker's __main__")
                raise
            self._names[name] = value
            self._pending.pop(name, None)

    def bind(self, name: str, make: Callable[[], Any]) -> Any:
        """Make the class or function `name` and put it in place before its contents are read."""
        with self._lock:
            if name in self._bound:
                self._pending.pop(name, None)
                return self._names[name]
            value = make()
            if name in self._pending:
                self._names[name] = value
                self._bound.add(name)
                del self._pending[name]
            return value

    def run_source(self, text: str, file: str, classes: Mapping[str, str]) -> dict[str, Any]:
        """Run the sender's script as an import of it would, once, in this namespace.

        Names that have a value here keep it: they were sent, or set by code that ran here.

        Args:
            text: source of the script.
            file: path of the script at the sender.
            classes: cloudpickle's ids of the classes of `__main__`; classes that arrive by value later are these.

        Raises:
            ImportError: the script raised an exception, which is the cause.
        """
        with self._lock:
            defined = self._of_source.get((text, file))
            if defined is not None:
                return defined
            names, module = self._names, sys.modules["__main__"]
            before = dict(names)
            sys.modules[IMPORTED] = module
            names["__name__"] = IMPORTED
            _here.is_importing = True
            try:
                exec(compile(text, file, "exec", dont_inherit=True), names)
            except (Exception, SystemExit) as error:
                raise ImportError(
                    f"{file} was imported in another process, as multiprocessing's spawn does, for a global that "
                    f"cannot be pickled, and raised {error!r}"
                ) from error
            finally:
                _here.is_importing = False
                names["__name__"] = "__main__"
                defined = {name: value for name, value in names.items() if value is not before.get(name, _here)}
                names.update(before)
            for name, value in defined.items():
                if getattr(value, "__module__", None) == IMPORTED and isinstance(value, type | types.FunctionType):
                    value.__module__ = "__main__"  # the name by which the sender finds it
                if isinstance(value, type) and name in classes:
                    _track(value, classes[name])
            self._of_source[text, file] = defined
            return defined


IMPORTED = "__mp_main__"
"""The name of a script that is imported, so that `if __name__ == "__main__":` is false, as in multiprocessing."""


class _Here:
    """The namespace of this process, if it is a worker."""

    namespace: MainNamespace | None = None
    is_importing = False
    """Whether the sender's script is being imported at this moment."""


_here = _Here()


def _digest(pickled: Any, buffers: Sequence[Any]) -> bytes:
    digest = hashlib.blake2b(pickled, digest_size=16)
    for buffer in buffers:
        digest.update(b"%d," % memoryview(buffer).nbytes)
        digest.update(buffer)
    return digest.digest()


# Functions that definitions call while they are unpickled. Their names are part of pickles: renaming one is a change of
# protocol.


def main_globals() -> dict[str, Any]:
    """The namespace of `__main__` in this process."""
    main = sys.modules["__main__"]
    return main.__dict__ if main.__name__ != IMPORTED else _globals_of_spawned(main)


def name_as_main(code: Any) -> None:
    """Give a function or class of the script, in a process that multiprocessing has spawned, its name in `__main__`.

    There the script was imported as `__mp_main__`, which is `__main__` as well, and which no other process has.

    Args:
        code: a function or class whose module is `__mp_main__`.
    """
    if sys.modules["__main__"].__name__ == IMPORTED and not is_importing():
        code.__module__ = "__main__"


def _globals_of_spawned(main: types.ModuleType) -> dict[str, Any]:
    """Return the namespace of a script that multiprocessing has imported: that of its functions.

    `runpy` gives the module a copy of it, in which a variable that a function sets is not seen.
    """
    names = main.__dict__
    for value in names.values():
        if isinstance(value, types.FunctionType) and value.__globals__.get("__name__") == IMPORTED:
            return value.__globals__
    return names


def define_missing(definitions: Mapping[str, Definition]) -> None:
    """Define those names of `__main__` that have no value; does nothing in the process whose `__main__` it is.

    Raises:
        Exception: as for `MainNamespace.install`.
    """
    if _here.namespace is not None:
        names = main_globals()
        missing = {name: definition for name, definition in definitions.items() if name not in names}
        if missing:
            _here.namespace.install(missing)


def main_reference(qualname: str, token: str) -> Any:
    """Return the object at `qualname` in `__main__`, defined first if its definition is pending.

    Args:
        qualname: a dotted path from `__main__`.
        token: not read here; it makes the bytes of a definition differ when the object that
            it refers to was replaced, so that `install` applies it again.
    """
    root, *rest = qualname.split(".")
    if _here.namespace is not None:
        _here.namespace.resolve(root)
    value = getattr(sys.modules["__main__"], root)
    for name in rest:
        value = getattr(value, name)
    return value


def value_of_source(text: str, file: str, name: str, classes: Mapping[str, str]) -> Any:
    """Return the value of a name of `__main__` by importing its source.

    Args:
        text: the source.
        file: path of the source at the sender.
        name: name in `__main__`.
        classes: as for `MainNamespace.run_source`.

    Raises:
        ImportError: the source raised an exception, or defines no such name when it is imported.
    """
    if _here.namespace is None:
        return main_globals()[name]
    defined = _here.namespace.run_source(text, file, classes)
    if name not in defined:
        raise ImportError(
            f"the global {name!r} of {file} cannot be pickled, and is not there when the script is imported: define it "
            "at the top level, pass what it needs as an argument, or set it in the pool's initializer",
            name=name,
        )
    return defined[name]


def is_importing() -> bool:
    """Return whether this process is importing the script of another one, and must not begin its work again."""
    return _here.is_importing


def bind_definition(name: str, tracker_id: str | None, make: Callable[..., Any], *arguments: Any) -> Any:
    """Make the value of `name`, or take the class that is already here under the tracker's id.

    Args:
        name: the name in `__main__`.
        tracker_id: cloudpickle's id of the class, or None for a function.
        make: called to make it if it is not here.
        *arguments: the arguments of `make`.
    """

    def create() -> Any:
        known = tracked_class(tracker_id)
        if known is not None:
            return known
        with _quiet_bases(arguments):
            return make(*arguments)

    return create() if _here.namespace is None else _here.namespace.bind(name, create)


def _track(cls: type, tracker_id: str) -> None:
    with _cloudpickle._DYNAMIC_CLASS_TRACKER_LOCK:
        _cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID[tracker_id] = cls
        _cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS[cls] = tracker_id


def tracked_class(tracker_id: str | None) -> Any:
    """Return the class that cloudpickle knows by this id in this process, or None."""
    return None if tracker_id is None else _cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID.get(tracker_id)


@contextmanager
def _quiet_bases(arguments: tuple[Any, ...]) -> Generator[None]:
    """Keep `__init_subclass__` of classes of `__main__` from running a second time.

    Its effects in the sender (a registry filled, attributes set) arrive as data, and its keyword arguments are not
    known any more.
    """
    tuples: list[tuple[Any, ...]] = [item for item in arguments if isinstance(item, tuple)]
    bases: list[type] = [base for item in tuples for base in item if isinstance(base, type)]
    definers = {
        cls
        for base in bases
        for cls in base.__mro__
        if cls.__module__ == "__main__" and "__init_subclass__" in cls.__dict__
    }
    hooks = {cls: cls.__dict__["__init_subclass__"] for cls in definers}

    def quiet(cls: type, **_: Any) -> None:
        pass

    for cls in hooks:
        cls.__init_subclass__ = classmethod(quiet)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        for cls, hook in hooks.items():
            cls.__init_subclass__ = hook
