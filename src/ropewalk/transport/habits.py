"""How a process logs and which warnings it shows: as the program that started it does at that moment.

A child that is forked logs as its parent does, because it is a copy; one that is spawned runs the script again, and
with it `logging.basicConfig`. Our processes are sent:

    levels, `propagate`, `disabled` and filters of all loggers; names of levels; `logging.disable`, `captureWarnings`
    handlers for stderr and stdout, which lead to the launcher's; handlers for files, to which they append; for queues
    of ours; and handlers whose class is the script's own. Others belong to their process; a logger that would lose all
    of its handlers logs to stderr.
    filters of warnings. A filter with a category of a library applies from the import of that library on: before, no
    warning can have that category.

Handlers of a library's own loggers are not sent: the library makes them itself when it is imported.
"""

from __future__ import annotations

import functools
import logging
import pickle
import re
import sys
import warnings
from collections.abc import Callable
from typing import Any

import msgspec

from ropewalk.transport.by_value import dumps_by_value
from ropewalk.transport.standard_objects import home

_logging: Any = logging  # private parts of the standard library, which its own configuration uses as well

_NOT_SENT = ("lock", "formatter", "filters", "level", "_name")
"""Attributes of a handler that are set anew in the other process."""


class _Handler(msgspec.Struct, frozen=True, array_like=True):
    kind: str
    """"stderr", "stdout", "file", "null", or "made" for a handler that is pickled."""
    level: int
    formatter: bytes
    filters: bytes
    file: tuple[str, str | None, str | None] | None = None
    """Path, encoding, and the error handler of the encoding."""
    made: bytes = b""


class _Logger(msgspec.Struct, frozen=True, array_like=True):
    name: str
    level: int
    propagate: bool
    disabled: bool
    filters: bytes
    handlers: list[_Handler] | None
    """The handlers; None leaves those that the logger has."""


class _Pattern(msgspec.Struct, frozen=True, array_like=True):
    text: str
    flags: int


class _Filter(msgspec.Struct, frozen=True, array_like=True):
    """A filter of warnings, in the order of `warnings`."""

    action: str
    message: str | _Pattern | None
    home: str
    """The module of the warning category."""
    category: str
    module: str | _Pattern | None
    line: int


class _Habits(msgspec.Struct, frozen=True, array_like=True):
    home: str
    """The host whose files are meant."""
    loggers: list[_Logger]
    level_names: list[tuple[int, str]]
    disabled_level: int
    captures_warnings: bool
    filters: list[_Filter]
    options: list[str]


_DECODER = msgspec.msgpack.Decoder(_Habits)


def habits() -> bytes:
    """Return the settings of this process, for `take_over` in another one."""
    loggers = [logging.root, *(each for each in list(logging.root.manager.loggerDict.values()) if _is_set(each))]
    told = _Habits(
        home=home(),
        loggers=[_told(logger) for logger in loggers if isinstance(logger, logging.Logger)],
        level_names=list(_logging._levelToName.items()),
        disabled_level=logging.root.manager.disable,
        captures_warnings=_logging._warnings_showwarning is not None,
        filters=[_told_filter(each) for each in list(warnings.filters)],
        options=sys.warnoptions,
    )
    return msgspec.msgpack.encode(told)


def take_over(habits: bytes) -> None:
    """Log and warn as another process does, which must be the owner of this one, and trusted."""
    told = _DECODER.decode(habits)
    for level, name in told.level_names:
        logging.addLevelName(level, name)
    logging.disable(told.disabled_level)
    for each in told.loggers:
        logger = logging.getLogger(each.name) if each.name else logging.root
        logger.level, logger.propagate, logger.disabled = each.level, each.propagate, each.disabled
        logger.filters[:] = _loaded(each.filters, [])
        if each.handlers is not None:
            logger.handlers[:] = _handlers(each.handlers, told.home == home())
    _logging.root.manager._clear_cache()  # `setLevel` would do this for each of them
    warnings.resetwarnings()
    warnings.filters.extend(map(_filter, told.filters))  # type: ignore[attr-defined]  # a list
    sys.warnoptions[:] = told.options
    if told.captures_warnings:
        logging.captureWarnings(True)


# Loggers


def _is_set(logger: Any) -> bool:
    if not isinstance(logger, logging.Logger):
        return False  # a placeholder in the tree of loggers
    return bool(logger.level or logger.handlers or logger.filters or logger.disabled or not logger.propagate)


def _told(logger: logging.Logger) -> _Logger:
    is_root = logger is logging.root
    is_librarys = not is_root and logger.name.partition(".")[0] in sys.modules and logger.name != "__main__"
    handlers = None
    if not is_librarys:
        told = [(handler, _told_handler(handler)) for handler in logger.handlers]
        handlers = [each for _, each in told if each]
        if told and not handlers:
            handlers = [_in_place_of(told[0][0])]
    return _Logger(
        "" if is_root else logger.name,
        logger.level,
        bool(logger.propagate),
        bool(logger.disabled),
        _dumped(logger.filters),
        handlers,
    )


def _told_handler(handler: logging.Handler) -> _Handler | None:
    """Return the description of a handler; None for one that stays with this process."""
    kind, file, made = type(handler), None, b""
    if isinstance(handler, logging.FileHandler):
        word, file = "file", (handler.baseFilename, handler.encoding, getattr(handler, "errors", None))
    elif kind is logging.NullHandler:
        word = "null"
    elif kind is logging.StreamHandler:
        word = _standard_stream(handler.stream)  # type: ignore[attr-defined]
    elif kind.__module__ == "__main__" or (kind.__module__, kind.__name__) == ("logging.handlers", "QueueHandler"):
        made = _dumped((kind, {name: value for name, value in handler.__dict__.items() if name not in _NOT_SENT}))
        word = "made" if made else ""
    else:
        word = ""
    formatter, filters = _dumped(handler.formatter), _dumped(handler.filters)
    return _Handler(word, handler.level, formatter, filters, file, made) if word else None


def _in_place_of(handler: logging.Handler) -> _Handler:
    is_plain = type(handler.formatter) is logging.Formatter  # a formatter of another class may need its own handler
    return _Handler("stderr", handler.level, _dumped(handler.formatter) if is_plain else b"", b"")


def _standard_stream(stream: Any) -> str:
    for name in ("stderr", "stdout"):
        is_it = stream is getattr(sys, name) or stream is getattr(sys, f"__{name}__")
        if is_it or getattr(stream, "name", "") == f"<{name}>":
            return name
    return ""


def _handlers(told: list[_Handler], is_home: bool) -> list[logging.Handler]:
    """Make the handlers of a logger.

    On another host, records for a file go to stderr, unless another handler shows them.
    """
    here = [each for each in told if is_home or each.kind != "file"]
    if told and not here:
        here = [_Handler("stderr", told[0].level, told[0].formatter, told[0].filters)]
    made = [(each, _made(each)) for each in here]
    for each, handler in made:
        if handler:
            handler.setLevel(each.level)
            handler.setFormatter(_loaded(each.formatter, None))
            handler.filters[:] = _loaded(each.filters, [])
    return [handler for _, handler in made if handler]


def _made(told: _Handler) -> logging.Handler | None:
    if told.kind == "file":
        from logging.handlers import WatchedFileHandler  # follows the file when the launcher rotates it

        assert told.file
        path, encoding, errors = told.file
        return WatchedFileHandler(path, encoding=encoding, delay=True, errors=errors)
    if told.kind == "made":
        return _put_together(*_loaded(told.made, (logging.NullHandler, {})))
    return logging.NullHandler() if told.kind == "null" else logging.StreamHandler(getattr(sys, told.kind))


def _put_together(kind: type[logging.Handler], attributes: dict[str, Any]) -> logging.Handler:
    handler = kind.__new__(kind)
    logging.Handler.__init__(handler)  # sets its lock, and registers it to be flushed at exit
    handler.__dict__.update(attributes)
    return handler


def _dumped(value: Any) -> bytes:
    """Pickle a user's object, code of `__main__` by value; b"" for None, and for an object that cannot be pickled."""
    if not value:
        return b""
    try:
        return dumps_by_value(value)
    except Exception:  # a filter that cannot be sent must not keep the process from starting
        return b""


def _loaded(pickled: bytes, default: Any) -> Any:
    try:
        return pickle.loads(pickled) if pickled else default  # noqa: S301 - as in `take_over`
    except Exception:  # its module may not be there on this host
        return default


# Warnings


def _told_filter(each: Any) -> _Filter:
    action, message, category, module, line = each
    return _Filter(action, _pattern(message), category.__module__, category.__qualname__, _pattern(module), line)


def _pattern(wanted: str | re.Pattern[str] | None) -> str | _Pattern | None:
    """Return the pattern that a text must match; the interpreter's own filters have a plain string instead."""
    return _Pattern(wanted.pattern, wanted.flags) if isinstance(wanted, re.Pattern) else wanted


def _compiled(told: str | _Pattern | None) -> str | re.Pattern[str] | None:
    return re.compile(told.text, told.flags) if isinstance(told, _Pattern) else told


def _filter(told: _Filter) -> tuple[Any, ...]:
    category = _find(told.home, told.category)
    if category is None:
        find = functools.partial(_find, told.home, told.category)
        facts = {"__module__": told.home, "__qualname__": told.category, "find": find}
        category = _Later(told.category, (Warning,), facts)
    return told.action, _compiled(told.message), category, _compiled(told.module), told.line


def _find(home: str, name: str) -> Any:
    found: Any = sys.modules.get(home)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


class _Later(type):
    """Stands for a category of warnings whose module is not imported yet."""

    find: Callable[[], Any]

    def __subclasscheck__(cls, subclass: type) -> bool:
        category = cls.find()
        return category is not None and issubclass(subclass, category)


__all__ = ["habits", "take_over"]
