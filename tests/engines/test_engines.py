"""Engines are found by name: ours in the table, those of others by entry points, and what is wrong is said."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ropewalk.engines import ENGINES, known_engines, make_engine
from ropewalk.engines.local import LocalEngine
from ropewalk.errors import EngineError, SettingsError, UnknownEngine

_OTHER = """
from ropewalk.engines.local import LocalEngine

class OtherEngine(LocalEngine):
    name = "other"
"""


def test_an_engine_is_made_by_name_and_imported_only_then() -> None:
    assert isinstance(make_engine("local"), LocalEngine)
    code = "import sys, ropewalk.engines as e; before = set(sys.modules); e.make_engine('local'); "
    code += "assert 'ropewalk.engines.local' in set(sys.modules) - before"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_the_table_imports_no_engine() -> None:
    code = "import sys, ropewalk.engines as e; print([m for m in e.ENGINES.values() if m.split(':')[0] in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "[]\n"


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UnknownEngine, match="'locl'") as caught:
        make_engine("locl")
    assert "did you mean 'local'?" in str(caught.value)
    assert all(name in str(caught.value) for name in ENGINES)


def test_options_reach_the_engine() -> None:
    with pytest.raises(SettingsError, match="'local' has no option partition"):
        make_engine("local", {"partition": "gpu"})


@pytest.mark.parametrize("name", sorted(ENGINES))
def test_every_entry_of_the_table_makes_an_engine(name: str) -> None:
    """Without its optional packages too: an engine asks for them when it is used, and says how to install them."""
    module, _, attribute = ENGINES[name].partition(":")
    code = f"import {module} as m; from ropewalk.engines.engine import Engine; "
    code += f"kind = m.{attribute} if isinstance(m.{attribute}, type) else type(m.{attribute}()); "
    code += f"assert issubclass(kind, Engine) and kind.name == {name!r}"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder with a package that adds engines, as an installer would have left it."""
    (tmp_path / "other_engine.py").write_text(_OTHER)
    (tmp_path / "broken_engine.py").write_text("import no_such_client_of_a_cluster")
    (tmp_path / "no_engine.py").write_text("def make(options): return 'a text'")
    facts = tmp_path / "others-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1.0\n")
    entries = [
        "other = other_engine:OtherEngine",
        "broken = broken_engine:BrokenEngine",
        "nameless = other_engine:NoSuchClass",
        "textual = no_engine:make",
        "local = other_engine:OtherEngine",
    ]
    (facts / "entry_points.txt").write_text("\n".join(["[ropewalk.engines]", *entries]))
    return tmp_path


@pytest.fixture
def _with_others(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(installed)


@pytest.mark.usefixtures("_with_others")
class TestInstalled:
    def test_it_is_known_and_made_with_its_options(self) -> None:
        assert {"other", "broken", *ENGINES} <= set(known_engines())
        assert make_engine("other").name == "other"
        with pytest.raises(SettingsError, match="'other' has no option speed"):
            make_engine("other", {"speed": "high"})

    def test_it_cannot_take_the_name_of_one_of_ours(self) -> None:
        assert known_engines()["local"] == ENGINES["local"]
        assert make_engine("local").name == "local"

    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("broken", "'broken' cannot be loaded from broken_engine:BrokenEngine: No module named 'no_such_client"),
            ("nameless", "'nameless' cannot be loaded from other_engine:NoSuchClass: .*NoSuchClass"),
            ("textual", "'textual' .*no_engine:make.* made 'a text', which is not a ropewalk.engines.engine.Engine"),
        ],
    )
    def test_what_is_wrong_with_it_is_said(self, name: str, words: str) -> None:
        with pytest.raises(EngineError, match=words):
            make_engine(name)

    def test_a_broken_one_does_not_stand_in_the_way_of_others(self) -> None:
        assert make_engine("local").name == "local"
        with pytest.raises(UnknownEngine, match="broken"):
            make_engine("nothing-like-it")


def test_an_installed_engine_runs_a_program_unchanged(installed: Path) -> None:
    code = "import ropewalk as rw, sys\nif __name__ == '__main__':\n"
    code += "    with rw.Session(engine='other') as s, rw.Pool(2, session=s) as p: print(p.map(abs, [-1, 2, -3]))\n"
    program = installed / "program.py"
    program.write_text(code)
    done = subprocess.run(
        [sys.executable, str(program)], cwd=installed, capture_output=True, text=True, timeout=200, check=False
    )
    assert (done.stdout, done.stderr) == ("[1, 2, 3]\n", "")
