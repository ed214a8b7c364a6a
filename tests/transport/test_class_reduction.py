"""Classes that have to be made whole: of a script they come back as themselves, by value they stay what they are."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ropewalk.transport.serialization import dumps

SCRIPT = '''
import abc, typing
from dataclasses import dataclass, field
import msgspec, ropewalk

class Same:
    __slots__ = ()
    def __eq__(self, other):
        return type(self) is type(other) and repr(self) == repr(other)
    def __repr__(self):
        names = [name for cls in type(self).__mro__ for name in getattr(cls, "NAMES", ())]
        return f"{type(self).__name__}({[getattr(self, name) for name in names]}, {hasattr(self, '__dict__')})"

class Slotted(Same):
    """Documented."""
    __slots__ = ("a", "__private", "__weakref__")
    NAMES = ("a", "_Slotted__private")
    def __init__(self, a):
        self.a = a
        self.__private = [a]

class Derived(Slotted):
    __slots__ = {"b": "an attribute"}
    NAMES = ("b",)
    def __init__(self, a):
        super().__init__(a)
        self.b = a + 1

class Open(Slotted):
    NAMES = ("free",)
    def __init__(self, a):
        super().__init__(a)
        self.free = a

class OneName(Same):
    __slots__ = "only"
    NAMES = ("only",)
    def __init__(self, only):
        self.only = only

class Abstract(abc.ABC):
    __slots__ = ("q",)
    @abc.abstractmethod
    def twice(self): ...

class Concrete(Same, Abstract):
    __slots__ = ()
    NAMES = ("q",)
    def __init__(self, q):
        self.q = q
    def twice(self):
        return Concrete(2 * self.q)

@dataclass(slots=True)
class Data:
    x: int
    many: list = field(default_factory=list)

@dataclass(slots=True, weakref_slot=True)
class More(Data):
    y: int = 3
    def copied(self):
        return More(self.x, self.many, self.y)

@dataclass(slots=True, frozen=True, order=True)
class Frozen:
    x: int

class Struct(msgspec.Struct):
    a: int
    many: list = []
    fresh: dict = msgspec.field(default_factory=lambda: {"x": 1})

class Child(Struct, frozen=True, kw_only=True, tag="child", rename="camel", omit_defaults=True):
    """A Struct of a Struct."""
    snake_case: "Frozen"
    other: typing.Optional[Struct] = None
    CONSTANT: typing.ClassVar[int] = 7
    def __post_init__(self):
        if self.snake_case.x < 0:
            raise ValueError("below zero")
    def doubled(self):
        return Child(2 * self.a, snake_case=self.snake_case, other=__class__.__base__(1))

class Pair(typing.NamedTuple):
    left: int
    right: "Pair | None" = None

MAKE = [
    lambda: Slotted(1), lambda: Derived(1), lambda: Open(1), lambda: OneName(1), lambda: Concrete(2).twice(),
    lambda: Data(1, [2]), lambda: More(1).copied(), lambda: Frozen(3), lambda: Struct(1),
    lambda: Child(1, snake_case=Frozen(2)).doubled(), lambda: Pair(1, Pair(2)),
    lambda: msgspec.json.encode(Child(1, snake_case=Frozen(2))), lambda: Child.__doc__,
]

def make(number):
    return MAKE[number]()

def checked(_):
    problems = []
    for number, attempt in enumerate([lambda: Derived(1).free, lambda: Child(1, snake_case=Frozen(-1)), Child]):
        try:
            attempt()
            problems.append(number)
        except (AttributeError, ValueError, TypeError):
            pass
    return problems

with ropewalk.Pool(1) as pool:
    for number in range(len(MAKE)):
        here = make(number)
        for there in (pool.apply(make, (number,)), pool.apply(lambda value: value, (here,))):
            if not (there == here and type(there) is type(here) and repr(there) == repr(here)):
                print(here, there, type(there))
    print(pool.map(checked, [0]))
    print("done")
'''


def test_classes_with_slots_and_structs_of_a_script_come_back_as_themselves(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, env={**os.environ}, timeout=200)
    assert (ran.stdout, ran.stderr) == ("[[]]\ndone\n", "")


def elsewhere(value: Any) -> Any:
    """What a process has that gets the value and knows nothing of its class."""
    payload = dumps(value)
    code = (
        "import pickle, sys; from ropewalk.transport.serialization import loads;"
        "value = loads(sys.stdin.buffer.read());"
        "print(repr(value), hasattr(value, '__dict__'))"
    )
    ran = subprocess.run([sys.executable, "-c", code], input=payload.pickle, capture_output=True, check=True)
    return ran.stdout.decode().strip()


def test_classes_of_functions_keep_their_slots_and_fields_by_value() -> None:
    @dataclass(slots=True)
    class Local:
        x: int
        y: int = 2

    class Struct(msgspec.Struct, frozen=True):
        a: int
        b: int = 2

    assert elsewhere(Local(1)) == "Local(x=1, y=2) False"
    assert elsewhere(Struct(1)) == "Struct(a=1, b=2) False"


@pytest.mark.parametrize("name", ["attrs", "pydantic"])
def test_classes_of_other_libraries_come_back_as_themselves(name: str, tmp_path: Path) -> None:
    pytest.importorskip(name)
    sources = {
        "attrs": "import attrs\n@attrs.define\nclass Kind:\n    x: int\n    many: list = attrs.field(factory=list)\n",
        "pydantic": "import pydantic\nclass Kind(pydantic.BaseModel):\n    x: int\n    many: list[int] = [1]\n",
    }
    use = "import ropewalk\nwith ropewalk.Pool(1) as pool:\n    print(pool.apply(lambda: Kind(x=1)) == Kind(x=1))\n"
    script = tmp_path / "script.py"
    script.write_text(sources[name] + use)
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=200)
    assert (ran.stdout, ran.stderr) == ("True\n", "")
