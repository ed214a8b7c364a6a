"""What `ropewalk.rl` needs: no optional package when it is imported, and few for each name."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from ropewalk import rl

PROGRAM = """
import json, sys
for name in {hidden}:
    sys.modules[name] = None
from ropewalk import rl
imported = sorted({{"numpy", "torch", "gymnasium"}} & set(sys.modules) - set({hidden}))
refused = {{}}
for name in rl.__all__:
    try:
        getattr(rl, name)
    except ImportError as error:
        refused[name] = str(error)
print(json.dumps([imported, refused]))
"""
REPLAY = ["Batch", "Block", "Fifo", "MinSize", "NStepAdder", "Replay", "ReplayTables", "Sampler", "TrajectoryWriter"]


def names_without(*hidden: str) -> Any:
    """What importing rl imported, and by names that it could not give, what it said instead."""
    argv = [sys.executable, "-c", PROGRAM.format(hidden=list(hidden))]
    return json.loads(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)


def test_all_names_are_there() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("gymnasium")
    assert [name for name in dir(rl) if not hasattr(rl, name)] == []


@pytest.mark.parametrize(("package", "name"), [("torch", "PPO"), ("gymnasium", "Gymnasium")])
def test_names_that_need_a_missing_package_say_how_to_install_it(package: str, name: str) -> None:
    imported, refused = names_without(package)
    assert imported == []
    says = {each: f"ropewalk.rl.{each} needs {package}: pip install 'ropewalk[rl]'" for each in refused}
    assert refused == says and name in refused


def test_replay_and_adders_need_only_numpy() -> None:
    _, refused = names_without("torch", "gymnasium", "safetensors")
    assert [name for name in REPLAY if name in refused] == []
