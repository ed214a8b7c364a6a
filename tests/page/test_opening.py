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


def test_token_is_not_printed_into_logs():
    url = "http://127.0.0.1:8470/place/?token=secret"
    assert opening.shown_address(url, "/run/address.txt", True) == url
    shown = opening.shown_address(url, "/run/address.txt", False)
    assert "secret" not in shown
    assert shown.startswith("http://127.0.0.1:8470/place/; ") and "/run/address.txt" in shown
