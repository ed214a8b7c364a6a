"""The example's run is kept whole; a fork of it goes on from a checkpoint, with another setting."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from ropewalk.tracking import open_store
from tests.needed_packages import needs

needs("sklearn")


def test_a_run_is_kept_and_a_fork_goes_on(
    load_example: Callable[[str], types.ModuleType],
    one_thread: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    main = load_example("track_pytorch").main
    monkeypatch.setenv("ROPEWALK_STORE", str(tmp_path / "runs.db"))
    monkeypatch.setattr(sys, "argv", ["track_pytorch.py", "--epochs", "4"])
    assert main() > 0.85
    with open_store(tmp_path / "runs.db") as store:
        (run,) = store.runs("digits")
        assert run.state == "done" and run.config == {"lr": 0.01, "epochs": 4}
        assert store.points(run.id, "accuracy", "validation").values[-1] > 0.85
        assert {one.step for one in store.checkpoints(run.id)} >= {2, 3, 4}
        assert [one.name for one in store.artifacts(run.id) if one.kind == "image"] == ["weights"]
        assert f"ropewalk runs show {run.id}" in capsys.readouterr().out

        for name, value in {"FORK": run.id, "FORK_STEP": "3", "SET": '{"lr": 0.001, "epochs": 5}'}.items():
            monkeypatch.setenv(f"ROPEWALK_{name}", value)
        main()
        (fork,) = store.children(run.id)
        assert fork.parent_step == 3 and fork.config == {"lr": 0.001, "epochs": 5}
        assert list(store.points(fork.id, "loss").steps) == [4, 5]
