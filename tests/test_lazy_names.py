"""Packages whose names are written once, and loaded when they are used."""

from __future__ import annotations

import builtins
import importlib
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

PACKAGES = [
    "",
    ".exchange",
    ".pipeline",
    ".pool",
    ".population",
    ".population.pictures",
    ".rl",
    ".tracking",
    ".training",
]
SOURCE = """
from ropewalk.lazy_names import LazyNames
_lazy = LazyNames(globals(), {"no_such_package": "knots"})
with _lazy:
    from json import dumps as dumps
    from json import loads as read
    from their_names import inner as inner
    from their_names.needs import thing as thing
with _lazy.unlisted():
    from json import JSONDecoder as JSONDecoder
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "their_names"
    folder.mkdir()
    (folder / "__init__.py").write_text(SOURCE)
    (folder / "inner.py").write_text("")
    (folder / "needs.py").write_text("import no_such_package")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "their_names"]:
        monkeypatch.delitem(sys.modules, name)
    return folder


@pytest.mark.usefixtures("package")
def test_names_are_listed_and_loaded_when_they_are_used() -> None:
    imports = builtins.__import__
    theirs = importlib.import_module("their_names")
    assert builtins.__import__ is imports
    assert theirs.__all__ == ["dumps", "inner", "read", "thing"]
    assert dir(theirs) == ["JSONDecoder", "dumps", "inner", "read", "thing"]
    assert "their_names.inner" not in sys.modules
    assert (theirs.dumps, theirs.read, theirs.JSONDecoder) == (json.dumps, json.loads, json.JSONDecoder)
    assert theirs.inner is sys.modules["their_names.inner"]
    with pytest.raises(
        AttributeError, match=r"module 'their_names' has no attribute 'dump'; it has JSONDecoder, dumps, "
    ):
        _ = theirs.dump


@pytest.mark.usefixtures("package")
def test_a_missing_package_is_answered_with_the_install_line() -> None:
    theirs = importlib.import_module("their_names")
    with pytest.raises(ModuleNotFoundError) as caught:
        _ = theirs.thing
    assert str(caught.value) == "their_names.thing needs no_such_package: pip install 'ropewalk[knots]'"
    assert caught.value.name == "no_such_package"


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("from json import JSONEncoder as dumps", "their_names names something twice, among dumps, "),
        ("import json", "names are imported as in: from json import A as A"),
        ("from json import *", "names are imported as in: from json import A as A"),
    ],
)
def test_what_is_written_twice_or_otherwise_is_refused(package: Path, line: str, complaint: str) -> None:
    imports = builtins.__import__
    (package / "__init__.py").write_text(SOURCE.replace("with _lazy.unlisted", f"    {line}\nwith _lazy.unlisted"))
    with pytest.raises(ImportError, match=complaint.replace("*", r"\*")):
        importlib.import_module("their_names")
    assert builtins.__import__ is imports


def test_a_name_of_one_block_is_not_repeated_in_the_other(package: Path) -> None:
    (package / "__init__.py").write_text(f"{SOURCE}    from json import dumps as dumps\n")
    with pytest.raises(ImportError, match="names something twice"):
        importlib.import_module("their_names")


def test_other_threads_import_as_ever_meanwhile(package: Path) -> None:
    """What another thread imports while a block runs is imported; another block waits for the end of this one."""
    imports = builtins.__import__
    source = SOURCE.replace("with _lazy:\n", "import their_meeting\nwith _lazy:\n")
    source = source.replace("with _lazy.un", "    their_meeting.meet()\nwith _lazy.un")
    (package / "__init__.py").write_text(source)
    other = package.with_name("their_others")
    other.mkdir()
    (other / "__init__.py").write_text(source.replace("their_names", "their_others"))
    (package.parent / "their_meeting.py").write_text(
        "import threading\ninside, go = threading.Event(), threading.Event()\n"
        "def meet():\n    inside.set()\n    assert go.wait(60)\n"
    )
    meeting = importlib.import_module("their_meeting")
    names = ["their_names", "their_others"]
    found: list[list[str]] = []
    first, second = (
        threading.Thread(target=lambda name=name: found.append(importlib.import_module(name).__all__)) for name in names
    )
    try:
        first.start()
        assert meeting.inside.wait(60)
        assert builtins.__import__ is not imports
        there: dict[str, Any] = {"__name__": "somebody"}
        exec("import tabnanny", there)
        assert there["tabnanny"] is sys.modules["tabnanny"]
        second.start()
        meeting.go.set()
        first.join()
        second.join()
        assert found == [["dumps", "inner", "read", "thing"]] * 2
        assert builtins.__import__ is imports
    finally:
        meeting.go.set()
        builtins.__import__ = imports
        for name in (*names, "their_meeting"):
            sys.modules.pop(name, None)


@pytest.mark.parametrize("package", [f"ropewalk{name}" for name in PACKAGES])
def test_every_name_of_our_packages_is_there(package: str) -> None:
    pytest.importorskip("torch")
    ours = importlib.import_module(package)
    assert [name for name in dir(ours) if not hasattr(ours, name)] == []
    assert set(ours.__all__) <= set(dir(ours))


@pytest.mark.parametrize("package", [f"ropewalk{name}" for name in PACKAGES])
def test_no_module_has_the_name_of_something_public_that_it_would_hide(package: str) -> None:
    """`ropewalk.tracking.track` was a module as soon as anything had imported that, and not the function."""
    ours = importlib.import_module(package)
    places: dict[str, str] = ours._lazy.homes
    folder = Path(str(ours.__file__)).parent
    hidden = [name for name, home in places.items() if home != package and list(folder.glob(f"{name}.py"))]
    assert not hidden


def test_importing_needs_not_even_typing() -> None:
    """It would take three quarters of the time."""
    code = "import sys, ropewalk, ropewalk.population; print({'typing', 're', 'ast', 'inspect'} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-S", "-c", f"import sys; sys.path[:] = {sys.path!r}\n{code}"],
                         check=True, capture_output=True, text=True)  # fmt: skip
    assert ran.stdout == "set()\n"


@pytest.mark.parametrize(
    ("name", "package", "extra"), [("Trainer", "torch", "torch"), ("track", "sqlalchemy", "tracking")]
)
def test_a_name_whose_package_is_not_installed_says_how_to_install_it(name: str, package: str, extra: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; import ropewalk; ropewalk.{name}"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert f"ropewalk.{name} needs {package}: pip install 'ropewalk[{extra}]'" in done.stderr
