"""`ropewalk checkpoint`: what was saved, for people and scripts, and whether it is whole."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from ropewalk.cli import app
from ropewalk.training.checkpoint_files import begin
from ropewalk.training.checkpoint_parts import write_part


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["checkpoint", *arguments], env={"COLUMNS": "200"})
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def save(folder: Path, step: int) -> Path:
    """Two parts: a layer with a state, whose name has points, and a layer without one, with a buffer."""
    kept = {"step": torch.tensor(1.0), "exp_avg": torch.zeros(3, 4), "exp_avg_sq": torch.zeros(3, 4)}
    first: dict[str, Any] = {
        "parameters": {"a.weight": torch.zeros(3, 4)},
        "buffers": {},
        "optimizer": {"a.weight": kept},
        "options": {"a.weight": {"lr": torch.tensor(0.1)}},
        "rates": {},
    }
    second: dict[str, Any] = {
        **{kind: {} for kind in first},
        "parameters": {"optimizer.scale": torch.tensor(1.0)},
        "buffers": {"b.mean\x1b[2J": torch.zeros(5, dtype=torch.bfloat16)},
    }
    with begin(folder, step) as writing:
        parts = [write_part(writing.path, name, state) for name, state in (("0.0", first), ("1.0", second))]
        facts = {"num_steps": step, "seed": 5, "schedule": "gpipe"}
        return writing.commit(parts, facts)


def test_people_get_a_line_for_each_tensor_and_the_word_that_all_is_whole(tmp_path: Path) -> None:
    save(tmp_path, 10)
    path = save(tmp_path, 20)
    code, output, _ = run(str(tmp_path))
    assert code == 0
    lines = output.splitlines()
    assert lines[0] == f"{path}: step 20, 2 parameters and 1 buffers of 0.0605 KiB, optimizer 0.0977 KiB"
    assert lines[1:4] == ["num_steps: 20", "seed: 5", "schedule: gpipe"]
    assert [line.split() for line in lines[5:9]] == [
        ["name", "kind", "dtype", "shape", "size", "optimizer", "part"],
        ["a.weight", "parameter", "F32", "3x4", "0.0469", "KiB", "0.0977", "KiB", "0.0"],
        ["b.mean\\x1b[2J", "buffer", "BF16", "5", "0.00977", "KiB", "-", "1.0"],
        ["optimizer.scale", "parameter", "F32", "one", "number", "0.00391", "KiB", "-", "1.0"],
    ]
    assert lines[10] == "also there: 0001-step-10"
    assert lines[11].startswith("6 files of 2 parts, ") and lines[11].endswith(": every byte is as it was written")
    assert len(lines) == 12


def test_scripts_get_all_of_it(tmp_path: Path) -> None:
    path = save(tmp_path, 20)
    code, output, _ = run(str(path), "--json")
    found = json.loads(output)
    assert code == 0
    assert (found["path"], found["step"], found["whole"], found["problems"]) == (str(path), 20, True, [])
    assert found["facts"] == {"num_steps": 20, "seed": 5, "schedule": "gpipe"}
    assert found["tensors"][0] == {
        "name": "a.weight",
        "kind": "parameter",
        "dtype": "F32",
        "shape": [3, 4],
        "size_bytes": 48,
        "optimizer_bytes": 100,
        "part": "0.0",
    }
    assert {file["name"]: file["size_bytes"] for file in found["files"]} == {
        one.name: one.stat().st_size for one in path.iterdir() if one.name != "manifest.json"
    }
    assert found["others"] == []


def test_damaged_files_are_all_named_with_exit_code_1(tmp_path: Path) -> None:
    path = save(tmp_path, 20)
    for name in ("weights-0.0.safetensors", "state-1.0.json"):
        content = bytearray((path / name).read_bytes())
        content[len(content) // 2] ^= 4
        (path / name).write_bytes(content)
    (path / "state-0.0.safetensors").unlink()
    code, output, _ = run(str(tmp_path))
    assert code == 1
    assert "6 files of 2 parts" in output and "damaged" in output
    problems = output.split("damaged\n", 1)[1].splitlines()
    assert [str(path / name) in line for name, line in zip(DAMAGED, problems, strict=True)] == [True] * 3
    code, output, _ = run(str(tmp_path), "--json")
    assert code == 1 and json.loads(output)["whole"] is False and len(json.loads(output)["problems"]) == 3
    code, output, _ = run(str(tmp_path), "--quick")
    assert code == 0 and output.endswith(": not read\n")


DAMAGED = ["weights-0.0.safetensors", "state-0.0.safetensors", "state-1.0.json"]


def test_a_damaged_manifest_is_named_and_the_older_checkpoints_with_it(tmp_path: Path) -> None:
    old, new = save(tmp_path, 10), save(tmp_path, 20)
    (new / "manifest.json").write_text("{}")
    code, output, errors = run(str(tmp_path))
    assert (code, output) == (1, "")
    assert errors.startswith(f"ropewalk checkpoint: {new / 'manifest.json'} is damaged") and str(old) in errors


@pytest.mark.parametrize(
    ("name", "words"), [(".", "there is no checkpoint in"), ("missing", "there is no such folder")]
)
def test_a_folder_without_checkpoints_is_wrong_usage(tmp_path: Path, name: str, words: str) -> None:
    code, output, errors = run(str(tmp_path / name))
    assert (code, output) == (2, "")
    assert errors.startswith("ropewalk checkpoint: ") and words in errors


def test_checkpoints_are_shown_where_there_is_no_torch(tmp_path: Path) -> None:
    save(tmp_path, 20)
    code = (
        "import sys\n"
        "sys.modules.update(torch=None, numpy=None)\n"
        "from ropewalk.cli import main\n"
        f"sys.argv[1:] = ['checkpoint', {str(tmp_path)!r}]\n"
        "main()\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "every byte is as it was written" in run.stdout
