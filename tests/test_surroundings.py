"""Which engine is meant when nobody names one, and how paths and variables travel."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ropewalk import settings
from ropewalk.surroundings import as_sent, engine_here, sendable


@pytest.fixture
def tools(tmp_path: Path) -> dict[str, str]:
    """An environment whose path holds an `sbatch`."""
    sbatch = tmp_path / "sbatch"
    sbatch.write_text("#!/bin/sh\n")
    sbatch.chmod(0o755)
    return {"PATH": str(tmp_path)}


def test_a_text_of_a_subclass_is_sent_as_a_text() -> None:
    # `python -m pdb script.py`: `__main__.__file__` was of a class of pdb's, and no pool could be made.
    class Target(str):
        __slots__ = ()

        def __str__(self) -> str:
            return "in words"

    sent = sendable(Target("/work/script.py"))
    assert type(sent) is str and sent == "/work/script.py"


def test_anywhere_else_it_is_this_machine(tools: dict[str, str]) -> None:
    assert engine_here(tools) == ("local", "default")


def test_inside_a_slurm_allocation_it_is_slurm(tools: dict[str, str]) -> None:
    inside = {**tools, "SLURM_JOB_ID": "8812"}
    assert engine_here(inside) == ("slurm", "surroundings: inside the Slurm allocation 8812")
    loaded = settings.load({}, inside, [])
    assert (loaded.engine, loaded.lease_s) == ("slurm", 2.5)
    assert loaded.origin("engine") == "surroundings: inside the Slurm allocation 8812"
    assert loaded.origin("lease_s") == "default"


def test_an_allocation_without_the_commands_of_slurm_is_only_a_machine(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert engine_here({"PATH": str(tmp_path / "empty"), "SLURM_JOB_ID": "8812"}) == ("local", "default")


def test_inside_a_pod_it_is_kubernetes_if_its_account_can_be_used(tmp_path: Path) -> None:
    inside = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    account = tmp_path / "token"
    assert engine_here(inside, account) == ("local", "default")
    account.write_text("not read")
    assert engine_here(inside, account) == ("kubernetes", "surroundings: inside a pod with a service account")
    assert engine_here({}, account) == ("local", "default")


def test_what_ropewalk_itself_started_does_not_look_around(tools: dict[str, str]) -> None:
    assert engine_here({**tools, "SLURM_JOB_ID": "8812", "ROPEWALK_RUN_ID": "0123456789abcdef"})[0] == "local"


def test_an_engine_that_is_named_wins_over_the_surroundings(tools: dict[str, str], tmp_path: Path) -> None:
    inside = {**tools, "SLURM_JOB_ID": "8812"}
    file = tmp_path / "ropewalk.toml"
    file.write_text('engine = "ssh"\n')
    assert settings.load({}, inside, [file]).engine == "ssh"
    assert settings.load({}, {**inside, "ROPEWALK_ENGINE": "docker"}, []).engine == "docker"
    named = settings.load({"engine": "local"}, inside, [])
    assert (named.origin("engine"), named.lease_s) == ("argument engine", 30.0)


@pytest.mark.parametrize(
    "raw", [b"", b"/home/ada", "/home/\u00e4".encode(), b"/home/\xe4", b"\xe4\xff\x80 and \xc3\xa4"]
)
def test_what_the_kernel_has_as_bytes_can_be_sent(raw: bytes) -> None:
    text = os.fsdecode(raw)
    sent = sendable(text)
    sent.encode()
    assert as_sent(sent) == text
    assert (sent == text) == (raw.decode(errors="ignore").encode() == raw), "text that can be sent stays as it is"
