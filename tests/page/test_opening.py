from __future__ import annotations

import subprocess
from typing import Any

import pytest

from ropewalk.page import opening


def test_password_of_a_store_is_no_argument_which_all_users_see(monkeypatch: pytest.MonkeyPatch):
    started: list[tuple[list[str], dict[str, str]]] = []

    def start(command: list[str], env: dict[str, str], **_: Any) -> Any:
        started.append((command, env))
        raise OSError("enough")

    monkeypatch.setattr(subprocess, "Popen", start)
    with pytest.raises(OSError, match="enough"):
        opening.page(store="postgresql://ada:secret@host/runs")
    [(command, environment)] = started
    assert not any("secret" in word for word in command)
    assert environment["ROPEWALK_STORE"] == "postgresql://ada:secret@host/runs"
