"""Every public name of multiprocessing exists here, ours or the standard library's as the page says."""

from __future__ import annotations

import importlib
import multiprocessing
import multiprocessing.context
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ropewalk
from ropewalk.compat.context import Context
from ropewalk.sharing.queues import Queue
from tests.compat.test_signatures import MODULES

pytestmark = pytest.mark.usefixtures("shared_session")

PAGE = Path(__file__).parents[2] / "docs" / "multiprocessing.md"


def read_page() -> dict[str, tuple[set[str], set[str]]]:
    """By module: the names that are ours, and those that are the standard library's."""
    found: dict[str, tuple[set[str], set[str]]] = {}
    for module, own, standard in re.findall(
        r"^\| `(ropewalk[\w.]*)` \| (.*) \| (.*) \|$", PAGE.read_text(), re.MULTILINE
    ):
        module = module.replace("ropewalk", "multiprocessing")
        found[module] = (set(re.findall(r"`(\w+)`", own)), set(re.findall(r"`(\w+)`", standard)))
    threads = importlib.import_module("multiprocessing.dummy")
    return found | {threads.__name__: (set(), set(threads.__all__))}  # of it the page says that all is there


NAMES = read_page()


def ours(module: str) -> Any:
    return importlib.import_module(module.replace("multiprocessing", "ropewalk"))


@pytest.mark.parametrize("module", MODULES)
def test_the_page_has_all_names_and_no_others(module: str) -> None:
    named = set.union(*NAMES[module])
    assert set(importlib.import_module(module).__all__) <= named
    assert named <= set(ours(module).__all__)


@pytest.mark.parametrize("module", MODULES)
def test_a_name_is_where_the_page_says(module: str) -> None:
    own, standard = NAMES[module]
    assert not [name for name in own if not getattr(ours(module), name).__module__.startswith("ropewalk.")]
    theirs = importlib.import_module(module)
    assert not [name for name in standard if getattr(ours(module), name) is not getattr(theirs, name)]


@pytest.mark.parametrize("name", sorted(set.union(*NAMES["multiprocessing"])))
def test_a_context_has_all_names(name: str) -> None:
    assert hasattr(ropewalk.get_context(engine="local"), name)


def test_all_names_of_multiprocessings_contexts_are_there() -> None:
    public = {name for name in dir(multiprocessing.context.BaseContext) if not name.startswith("_")}
    assert public <= set(dir(ropewalk.get_context()))


@pytest.mark.parametrize("module", [module for module in MODULES if "." in module])
def test_submodules_are_at_hand_as_in_multiprocessing(module: str) -> None:
    name = module.rpartition(".")[2]
    assert getattr(ropewalk, name) is sys.modules[f"ropewalk.{name}"]


def test_libraries_take_our_contexts_for_contexts() -> None:
    """torch's DataLoader, for one, looks at the class before it asks for queues and processes."""
    assert isinstance(ropewalk.get_context(), multiprocessing.context.BaseContext)
    assert isinstance(ropewalk.get_context("spawn"), multiprocessing.context.BaseContext)


def test_what_takes_a_context_takes_ours_and_multiprocessings(shared_depot: None) -> None:
    with ropewalk.Session() as session:
        for context in (ropewalk.get_context(session=session), multiprocessing.get_context("spawn")):
            queue, simple = ropewalk.queues.Queue(2, ctx=context), ropewalk.queues.SimpleQueue(ctx=context)
            queue.put(1)
            simple.put(queue.get())
            assert simple.get() == 1
            for kind in ("Lock", "RLock", "Semaphore", "BoundedSemaphore", "Condition"):
                with getattr(ropewalk.synchronize, kind)(ctx=context):
                    pass
            assert not ropewalk.synchronize.Event(ctx=context).is_set()
            assert ropewalk.synchronize.Barrier(1, ctx=context).wait() == 0
            assert ropewalk.sharedctypes.Value("i", 3, ctx=context).value == 3
            assert len(ropewalk.sharedctypes.Array("i", 3, ctx=context)) == 3
            with ropewalk.sharedctypes.synchronized(ropewalk.RawValue("i", 4), ctx=context) as acquired:
                assert acquired
        with ropewalk.Pool(1, None, (), None, ropewalk.get_context(session=session)) as pool:  # its place there
            assert pool._session is session
            assert pool._processes == 1


def test_a_star_import_needs_no_torch_and_imports_none() -> None:
    code = """
import sys
sys.modules["torch"] = sys.modules["numpy"] = None  # as if they were not installed
from ropewalk import *
print(Pool.__module__, Queue.__module__, "Trainer" in globals())
del sys.modules["torch"], sys.modules["numpy"]
from ropewalk import *
print("torch" in sys.modules, "numpy" in sys.modules)
import ropewalk, types
sys.modules["ropewalk.training.trainer"] = types.SimpleNamespace(Trainer=int)  # which takes 2 s to import torch
print("Trainer" in dir(ropewalk), ropewalk.Trainer.__name__)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == (
        "ropewalk.pool.pool ropewalk.sharing.queues False\nFalse False\nTrue int\n",
        "",
    )


def test_start_methods_that_promise_what_we_do_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ropewalk.compat.context._method", None)
    assert ropewalk.get_context("spawn") is ropewalk.get_context().get_context("spawn")
    assert ropewalk.get_context("forkserver").get_start_method() == "forkserver"
    assert ropewalk.get_start_method() == "spawn"
    ropewalk.set_start_method("forkserver")
    assert ropewalk.get_start_method() == "forkserver"
    with pytest.raises(RuntimeError, match="already been set"):
        ropewalk.set_start_method("spawn")
    ropewalk.set_start_method("spawn", force=True)
    for ask in (ropewalk.get_context, ropewalk.set_start_method):
        with pytest.raises(ValueError, match="does not fork"):
            ask("fork")
        with pytest.raises(ValueError, match="cannot find context for 'sprawn'"):
            ask("sprawn")
    with pytest.raises(ValueError, match="concrete context"):
        ropewalk.get_context().set_start_method("spawn")


def test_another_interpreter_is_refused_and_preloads_are_checked() -> None:
    ropewalk.set_executable(sys.executable)
    with pytest.raises(ValueError, match="option `python`"):
        ropewalk.set_executable("/usr/bin/python9")
    with pytest.raises(TypeError, match="must be a list of strings"):
        ropewalk.set_forkserver_preload("json")


def say(queue: Queue, value: int) -> None:
    queue.put((value, ropewalk.current_process().name))


def test_a_context_is_bound_to_its_session() -> None:
    with ropewalk.Session() as session:
        mp = ropewalk.get_context(session=session)
        assert mp.session is session
        queue = mp.Queue()
        process = mp.Process(target=say, args=(queue, 4), name="speaker")
        process.start()
        assert queue.get() == (4, "speaker")
        process.join()
        assert process.exitcode == 0
        with mp.Pool(1) as pool:
            assert pool.apply(abs, (-3,)) == 3
        with mp.Executor(1) as executor:
            assert executor.submit(abs, -3).result() == 3
        lock, (left, right) = mp.RLock(), mp.Pipe()
        with lock, mp.Condition(lock):
            left.send("hello")
            assert right.recv() == "hello"
        with mp.Manager() as manager:
            assert manager.list([1, 2])[1] == 2  # type: ignore[attr-defined]
        assert mp.Value("i", 3).value == 3
        assert list(mp.Array("i", [1, 2])) == [1, 2]
        assert pickle.loads(pickle.dumps(queue)).empty()
        assert len(session.hosts()) == 1


def test_a_context_says_its_engine_and_checks_it_at_once() -> None:
    assert repr(ropewalk.get_context(engine="local")) == "<ropewalk context, engine='local'>"
    assert isinstance(ropewalk.get_context(), Context)
    with pytest.raises(ropewalk.errors.SettingsError):
        ropewalk.get_context(hosts=-1)


def test_our_contexts_and_processes_are_what_the_modules_call_so() -> None:
    assert isinstance(ropewalk.get_context("spawn"), ropewalk.context.BaseContext)
    assert isinstance(ropewalk.Process(), ropewalk.process.BaseProcess)
    assert issubclass(ropewalk.context.Process, ropewalk.process.BaseProcess)
