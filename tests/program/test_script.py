"""A script as the function of a node, and the import path and arguments that it finds."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

import ropewalk as rw
from ropewalk.processes.messages import IF_THERE
from ropewalk.program.preloading import found_preload


def test_a_script_travels_with_its_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    script = rw.Script("train.py", "--seed", "7")
    assert pickle.loads(pickle.dumps(script)) == script != rw.Script("train.py", "--seed", "8")
    assert repr(script) == "Script('train.py', '--seed', '7')"
    assert repr(rw.Script("pack.train", module=True)) == "Script('pack.train', module=True)"


def test_arguments_that_are_no_strings_are_refused() -> None:
    with pytest.raises(TypeError, match="strings, not 7"):
        rw.Script("train.py", "--seed", 7)  # type: ignore[arg-type]


def test_the_slow_imports_of_a_script_are_found_without_running_it(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("import torch\nraise SystemExit('it was run')\n")
    assert found_preload([rw.Script(file)]) == (f"torch{IF_THERE}",)
    assert found_preload([rw.Script(tmp_path / "none.py"), rw.Script("torch", module=True)]) == ()


@pytest.mark.usefixtures("shared_session")
def test_a_script_that_is_not_there_is_named_and_not_tried_again(tmp_path: Path) -> None:
    program = rw.Program("lost")
    program.add(rw.RankGroup(rw.Script(tmp_path / "trian.py"), 1), name="train", restart="on_failure")
    with pytest.raises(rw.ProgramFailed, match=r"there is no file .*trian.py.*This process runs in"):
        program.launch().wait(120)
