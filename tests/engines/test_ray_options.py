"""What the ray engine says and refuses before there is a cluster."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ropewalk.engines.engine import JobSpec
from ropewalk.engines.ray import RayEngine
from ropewalk.engines.ray_jobs import PREFIX, quoted, run_of
from ropewalk.engines.resources import Resources
from ropewalk.errors import EngineError, SettingsError


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"placement": "TIGHT"}, "'STRICT_SPREAD', 'STRICT_PACK', not 'TIGHT'"),
        ({"auth": "maybe"}, "auth must be one of 'token', 'disabled', not 'maybe'"),
        ({"connect_s": 0}, "connect_s must be above 0, not 0"),
        ({"silence_s": "-1"}, "silence_s must be above 0"),
        ({"resources": "CPU=2"}, "CPU follows from what a process asks for"),
        ({"resources": {"node": "many"}}, "node=many; an amount is a number above 0"),
        ({"resources": {"node": "0"}}, "node=0; an amount is a number above 0"),
        ({"runtime_env": "pip"}, "runtime_env is a JSON object, not 'pip'"),
        ({"runtime_env": "[1]"}, "runtime_env is a JSON object"),
        ({"adress": "auto"}, "did you mean address?"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        RayEngine(options)
    assert words in str(caught.value)


def test_what_would_be_sent_is_shown() -> None:
    engine = RayEngine({"placement": "PACK", "resources": "fast=1", "runtime_env": '{"pip": ["numpy"]}'})
    resources = Resources(cpus=2, gpus=1, memory="1Gi")
    shown = json.loads(engine.render(JobSpec(["python", "-m", "x"], environment={"A": "b"}, resources=resources)))
    bundle = {"CPU": 2, "GPU": 1, "memory": 2**30, "fast": 1.0}
    assert shown["placement_group"] == {"strategy": "PACK", "bundle": bundle}
    assert shown["actor"]["num_gpus"] == 1
    assert shown["actor"]["resources"] == {"fast": 1.0}
    assert shown["runtime_env"] == {"pip": ["numpy"]}
    assert (shown["command"], shown["environment"]) == (["python", "-m", "x"], {"A": "b"})


@pytest.fixture
def _no_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("_no_token")
def test_without_a_token_it_says_where_one_is_looked_for() -> None:
    """Ray would make one of its own, with which nobody lets it in."""
    engine = RayEngine()
    with pytest.raises(EngineError, match="no token for the Ray cluster: set token_path, RAY_AUTH_TOKEN or"):
        engine.submit(JobSpec(["true"]), 1, "run", "a")
    [finding] = engine.check()
    assert not finding.ok
    assert "token_path" in finding.detail


@pytest.mark.usefixtures("_no_token")
@pytest.mark.parametrize(
    ("options", "mode", "path"), [({"auth": "disabled"}, "disabled", None), ({"token_path": "~/t"}, "token", "t")]
)
def test_the_driver_is_told_how_to_prove_itself_and_to_report_nothing(
    options: dict[str, object], mode: str, path: str | None, tmp_path: Path
) -> None:
    seen: dict[str, Any] = {}

    class Watched(RayEngine):
        def _popen(self, argv: Sequence[str], **popen_arguments: Any) -> subprocess.Popen[bytes]:
            seen.update(popen_arguments["env"], argv=argv)
            answers = ["2.60.0", [["run", "id"]], 0]
            code = (
                f"import json\nfor n, one in enumerate({answers}, 1): print(json.dumps({{'answer': one, 'number': n}}))"
            )
            return super()._popen([sys.executable, "-c", code], **popen_arguments)

    engine = Watched(options)
    assert engine.runs() == {"run": ["id"]}
    engine.close()
    assert (seen["RAY_AUTH_MODE"], seen["RAY_USAGE_STATS_ENABLED"]) == (mode, "0")
    assert seen.get("RAY_AUTH_TOKEN_PATH") == (path and str(tmp_path / path))


@pytest.mark.usefixtures("_no_token")
def test_without_ray_it_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that hides the real one, as if it were not there."""
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "__init__.py").write_text("raise ModuleNotFoundError(\"No module named 'ray'\", name='ray')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    engine = RayEngine({"auth": "disabled"})
    with pytest.raises(EngineError, match=r"package ray is not installed; pip install 'ropewalk\[ray\]'"):
        engine.find("run")
    engine.close()


@pytest.mark.parametrize("run", ["0123456789abcdef", "conformance-1/2", "ä b"])
def test_an_actors_name_tells_its_run(run: str) -> None:
    assert run_of(f"{PREFIX}{quoted(run)}/{quoted('a/b')}/3") == run


def test_the_engine_does_not_import_ray() -> None:
    """It takes a second, and starts threads."""
    code = "import sys, ropewalk.engines.ray; sys.exit('ray' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


class Answering(RayEngine):
    """Has a driver that answers once, and reads nothing more."""

    def __init__(self) -> None:
        super().__init__({"auth": "disabled"})

    def _popen(self, argv: Sequence[str], **popen_arguments: Any) -> subprocess.Popen[bytes]:
        code = 'import time; input(); print(\'{"answer": "2.60.0", "number": 1}\', flush=True); time.sleep(600)'
        return super()._popen([sys.executable, "-c", code], **popen_arguments)


def test_a_driver_that_is_stopped_is_given_up_also_before_it_has_read_its_order() -> None:
    """The code of a submitted script is more than a pipe holds, and writing it had no timeout."""
    driver = Answering()._start_driver()
    with pytest.raises(EngineError, match=re.escape("Ray did not answer within 0.5 s")):
        driver.ask({"do": "submit", "stdin": "x" * (1 << 20)}, 0.5)
    assert not driver.is_alive


class Echoing(RayEngine):
    """Has a driver that answers with the request, after `pause_s` seconds."""

    def __init__(self) -> None:
        super().__init__({"auth": "disabled"})

    def _popen(self, argv: Sequence[str], **popen_arguments: Any) -> subprocess.Popen[bytes]:
        code = (
            "import json, sys, time\n"
            "for line in sys.stdin:\n"
            "    asked = json.loads(line)\n"
            "    time.sleep(asked.get('pause_s', 0))\n"
            "    print(json.dumps({'answer': asked.get('do'), 'number': asked['number']}), flush=True)\n"
        )
        return super()._popen([sys.executable, "-c", code], **popen_arguments)


@pytest.mark.parametrize("size", [10, 1 << 20])
def test_an_answer_is_not_taken_for_that_of_another_request(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-C in a wait for an answer, or within a long request, each request got the answer of the one before."""
    driver = Echoing()._start_driver()
    with monkeypatch.context() as patch:
        waits = driver._wait_for
        visits: list[int] = []

        def interrupted(fd: int, event: int, deadline: float, patience_s: float) -> None:
            visits.append(event)
            if len(visits) == 2:  # after the first write
                raise KeyboardInterrupt
            waits(fd, event, deadline, patience_s)

        patch.setattr(driver, "_wait_for", interrupted)
        with pytest.raises(KeyboardInterrupt):
            driver.ask({"do": "poll", "ids": "x" * size})
    assert driver.ask({"do": "find"}) == "find"
    driver.end()


def test_threads_that_ask_at_the_same_time_get_their_own_answers() -> None:
    """The end of a session cancels while another thread polls."""
    driver = Echoing()._start_driver()
    found: dict[str, object] = {}

    def ask(do: str) -> None:
        found[do] = driver.ask({"do": do, "pause_s": 0.05})

    threads = [threading.Thread(target=ask, args=[do]) for do in ("poll", "cancel", "find", "log")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    driver.end()
    assert found == {do: do for do in ("poll", "cancel", "find", "log")}
    with pytest.raises(EngineError, match="has ended"):
        driver.ask({"do": "find"})


def test_a_launcher_with_many_open_files_can_use_ray() -> None:
    """`select` takes no descriptor above 1023, and a launcher of many processes has more."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], 2048), limits[1]))
    with contextlib.ExitStack() as files:
        files.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        while files.enter_context(open(os.devnull, "rb")).fileno() < 1100:
            pass
        driver = Answering()._start_driver()
        assert driver.ray_version == "2.60.0"
        driver.end(grace_s=0.0)
