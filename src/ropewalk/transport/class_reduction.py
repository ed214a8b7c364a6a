"""Classes that travel by value, where cloudpickle would make another class of them.

cloudpickle makes an empty class and sets the attributes afterwards. That does not work for attributes that take effect
only when a class is made:

    __slots__              the places of its attributes; without them instances have a `__dict__`, and cannot be sent
    back a Struct of msgspec    its fields with their defaults, and how it is encoded a structure of ctypes  its fields,
    which must be set last
"""

from __future__ import annotations

import inspect
import operator
import sys
import types
import typing
from typing import Any

import cloudpickle.cloudpickle

_cloudpickle: Any = cloudpickle.cloudpickle  # untyped; its private parts are what we build on

_PLACES = ("__dict__", "__weakref__")
"""Attributes that a class has only if its slots name them, or if it has no slots."""


def reduce_class(cls: Any, reduced: Any) -> Any:
    """Return the reduction of a class by value.

    Args:
        cls: the class.
        reduced: cloudpickle's reduction of it.
    """
    if type(cls).__module__ == "_ctypes":
        return _reduce_ctypes_class(cls, *reduced)
    if _is_struct(cls):
        return _reduce_struct(cls, *reduced)
    is_named_tuple = typing.NamedTuple in cls.__dict__.get("__orig_bases__", ())  # its metaclass makes the slots
    if "__slots__" in cls.__dict__ and reduced[0] is _cloudpickle._make_skeleton_class and not is_named_tuple:
        return _reduce_slotted(cls, *reduced)
    return reduced


def _reduce_slotted(cls: Any, make: Any, arguments: Any, state: Any, *rest: Any) -> Any:
    """Reduce a class with its slots from the beginning, named by their descriptors: private names are mangled."""
    meta, name, bases, facts, *others = arguments
    attributes, slots = state
    places = [name for name, value in cls.__dict__.items() if _is_slot(value, cls)]
    facts = {**facts, "__slots__": (*places, *(name for name in _PLACES if name in cls.__dict__))}
    kept = {name: value for name, value in attributes.items() if not _is_slot(value, cls)}
    return make, (meta, name, bases, facts, *others), (kept, slots), *rest


def _is_slot(value: object, cls: type) -> bool:
    return isinstance(value, types.MemberDescriptorType) and value.__objclass__ is cls


# Structures of ctypes


def _reduce_ctypes_class(cls: Any, _: Any, arguments: Any, state: Any, *rest: Any) -> Any:
    """Return the reduction of a class of ctypes, whose metaclass cannot be imported."""
    length = getattr(cls, "_length_", None)
    if length is not None and cls.__name__ == f"{cls._type_.__name__}_Array_{length}":
        return operator.mul, (cls._type_, cls._length_)
    attributes, slots = state
    kept = {name: value for name, value in attributes.items() if type(value).__name__ != "CField"}
    if "_fields_" in kept:
        kept["_fields_"] = kept.pop("_fields_")  # last: setting it makes the fields, from the attributes set before
    return make_structure, arguments[1:], (kept, slots), *rest


# Structs of msgspec, which is not imported for programs that use none


def _is_struct(cls: Any) -> bool:
    msgspec = sys.modules.get("msgspec")
    return msgspec is not None and issubclass(cls, msgspec.Struct)


def _reduce_struct(cls: Any, _: Any, arguments: Any, *rest: Any) -> Any:
    """Return the arguments of `msgspec.defstruct`, methods included.

    It looks for `__post_init__` when the class is made.
    """
    own = set(cls.__slots__)
    hints = {name: hint for name, hint in inspect.get_annotations(cls).items() if name in own}
    kinds = inspect.signature(cls).parameters
    given = len(cls.__struct_fields__) - len(cls.__struct_defaults__)
    fields: list[tuple[str, Any, str, tuple[Any, ...]]] = []
    for at, (name, encoded) in enumerate(zip(cls.__struct_fields__, cls.__struct_encode_fields__, strict=True)):
        if name in own:
            fields.append((name, hints[name], encoded, _default_of(cls, at - given)))
    fields.sort(key=lambda field: list(hints).index(field[0]))
    config = {name: getattr(cls.__struct_config__, name) for name in dir(cls.__struct_config__) if name[0] != "_"}
    config["kw_only"] = any(kinds[name].kind is inspect.Parameter.KEYWORD_ONLY for name in own)
    made = {"__slots__", "__annotations__", "__match_args__", *_PLACES}
    others = {
        name: value
        for name, value in cls.__dict__.items()
        if name not in made and not name.startswith("__struct_") and not _is_slot(value, cls)
    }
    return make_struct, (cls.__name__, cls.__bases__, fields, config, others, arguments[-2])


def _default_of(cls: Any, at: int) -> tuple[Any, ...]:
    """Return the arguments of `make_default`: a kind, and a value if there is one."""
    import msgspec

    default = cls.__struct_defaults__[at] if at >= 0 else msgspec.NODEFAULT
    if default is msgspec.NODEFAULT:
        return ("required",)
    factory = getattr(default, "factory", None) if type(default).__name__ == "Factory" else None
    return ("value", default) if factory is None else ("factory", factory)


# Functions that pickles call. Their names are part of pickles: renaming one is a change of protocol.


def make_structure(name: str, bases: tuple[type, ...], *arguments: Any) -> type[Any]:
    """Make a ctypes structure that has no fields yet."""
    return _cloudpickle._make_skeleton_class(type(bases[0]), name, bases, *arguments)


def make_struct(
    name: str,
    bases: tuple[type, ...],
    fields: list[tuple[str, Any, str, tuple[Any, ...]]],
    config: dict[str, Any],
    others: dict[str, Any],
    tracker_id: str | None,
) -> Any:
    """Make a Struct class of msgspec.

    Args:
        name: name of the class.
        bases: its base classes.
        fields: its own fields: name, type, encoded name, and the result of `_default_of`.
        config: options with which the class is made.
        others: its other attributes.
        tracker_id: cloudpickle's id of the class.
    """
    import msgspec

    made = [
        (field, hint, msgspec.field(name=None if encoded == field else encoded, **_default(*default)))
        for field, hint, encoded, default in fields
    ]
    cls = msgspec.defstruct(name, made, bases=bases, namespace=others, **config)
    return _cloudpickle._lookup_class_or_track(tracker_id, cls)


def _default(word: str, *value: Any) -> dict[str, Any]:
    return {"value": {"default": value[0]}, "factory": {"default_factory": value[0]}}[word] if value else {}


__all__ = ["make_struct", "make_structure", "reduce_class"]
