"""Takes the pictures of this folder: runs the examples for real, opens the page in Chromium, and looks at each of them.

    pip install -e '.[test]'                 # and chromium and chromedriver on the PATH
    python -m docs.pictures.take [NAME ...]    # in the folder of the project

Each view is taken in light and in dark, as NAME.png and NAME-dark.png.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tests.lab.browser import chromium

import ropewalk as rw
from ropewalk import tracking
from ropewalk.page.source import Launchers

FOLDER = Path(__file__).resolve().parent
EXAMPLES = FOLDER.parents[1] / "examples"
WIDTH = 1280
_BEGIN_S = 300.0
_NUM_EXACT = 32
"""Colours that pictures keep exactly."""

POOL = """
import os, random, time, ropewalk as rw

def evaluate(x):
    time.sleep(random.random() * 0.4)
    return x * x

def mutate(x):
    time.sleep(random.random() * 0.15)
    if random.random() < 0.004:
        os.kill(os.getpid(), 9)  # as the kernel does when memory runs out
    return x

with rw.Pool(6, name="evolution") as pool:
    while True:
        pool.map(evaluate, range(60), chunksize=1)
        pool.map(mutate, range(60), chunksize=1)
"""
PROGRAM = """
import random, time, os, ropewalk as rw

class Replay:
    def insert(self, n):
        time.sleep(0.001)
    def sample(self):
        time.sleep(0.004)
        return list(range(32))

class Learner:
    def __init__(self, replay):
        self.replay, self.version = replay, 0
    def run(self):
        while not rw.stopping():
            self.replay.sample()
            self.version += 1
    def weights(self):
        return self.version

class Actor:
    def __init__(self, learner, replay):
        self.learner, self.replay = learner, replay
    def run(self):
        began = time.time()
        while not rw.stopping():
            self.learner.weights()
            for _ in range(20):
                time.sleep(0.004)
                self.replay.insert(1)
            if time.time() - began > 6 and random.random() < 0.03:
                raise RuntimeError("the simulator returned NaN in 'reward'")

program = rw.Program("agents")
replay = program.add(rw.Service(Replay), name="replay")
learner = program.add(rw.Service(Learner, replay), name="learner")
program.add(rw.Worker(Actor, learner, replay), name="actor", replicas=4, restart=rw.Restart(max_restarts=1000))
with program.launch() as running:
    running.wait()
"""

_BOTTOM = """
const ends = Array.from(document.querySelectorAll(".panel"), (panel) => panel.getBoundingClientRect().bottom);
const seen = ends.filter((end) => end <= innerHeight);
return ends.length > seen.length ? Math.max(0, ...seen) + 10 : 0;"""
"""Where the last panel ends of which the whole is seen, in pixels with a margin; 0 if that is so of all."""


@dataclass(frozen=True, slots=True)
class Scene:
    """A view of the page.

    Attributes:
        name: of the files.
        path: of the page; makes it from the id of what runs.
        command: script and arguments; none: nothing is started.
        thing: beginning of the name of what runs, or its kind.
        after_s: seconds for which it has run before the picture is taken.
        height: in pixels.
        seen_s: seconds for which the page has been open, which records what is costly only then.
        prepare: runs before, to fill the store.
    """

    name: str
    path: Callable[[str], str]
    command: tuple[str, ...] = ()
    thing: str = ""
    after_s: float = 15.0
    height: int = 1100
    seen_s: float = 6.0
    prepare: Callable[[], object] | None = None


def here(id: str) -> str:
    """The path of something that runs."""
    return f"/now/{id}"


def _scripts() -> list[str]:
    """Make three runs of a script, unless they are there; returns their ids."""
    if not _of_kind("script", 3):
        for rate in (0.003, 0.01, 0.3):
            example("track_pytorch.py", "--epochs", "12", "--lr", str(rate))
    return _of_kind("script", 3)


def _search() -> str:
    """Make a search, unless it is there; returns its id."""
    if not _of_kind("search"):
        example("search_digits.py", "--trials", "40", "--picture", "")
    return _of_kind("search")[0]


def _of_kind(kind: str, num: int = 1) -> list[str]:
    if not Path(os.environ["ROPEWALK_STORE"]).exists():
        return []
    with tracking.open_store(create=False) as store:
        return [run.id for run in store.runs() if run.kind == kind][:num]


def example(name: str, *arguments: str) -> None:
    """Run an example to its end."""
    subprocess.run(["python", name, *arguments], check=True, stdout=subprocess.DEVNULL)


SCENES = (
    Scene("program", here, ("agents.py",), "agents", 25.0, 1440),
    Scene("pool", here, ("evolution.py",), "evolution", 20.0, 1240, seen_s=28.0),
    Scene("now", lambda _: "/", ("evolution.py",), "evolution", 8.0, 620),
    Scene("trainer", here, ("train_gpt.py", "--steps", "100000"), "trainer", 30.0, 1500),
    Scene("population", here, ("map_elites.py", "--generations", "100000"), "population", 20.0, 1420),
    Scene(
        "pbt",
        here,
        ("pbt_digits.py", "--population", "40", "--epochs", "1000", "--picture", ""),
        "population",
        45.0,
        2300,
    ),
    Scene(
        "experiment",
        here,
        ("rl_cartpole.py", "--steps", "100000000", "--picture", ""),
        "experiment",
        40.0,
        1500,
    ),
    Scene("runs", lambda _: "/runs", prepare=lambda: (_scripts(), _search()), height=460),
    Scene("run", lambda _: f"/runs/{_scripts()[0]}", height=730),
    Scene("compare", lambda _: f"/compare?runs={','.join(_scripts())}", height=900),
    Scene("search", lambda _: f"/search/{_search()}", height=1500, seen_s=50.0),
)


def main(names: Sequence[str]) -> None:
    """Take the pictures with these names, or all."""
    with _folder() as folder:
        os.environ["ROPEWALK_STORE"] = str(Path(folder, "runs.db"))
        os.environ["ROPEWALK_RUN_FOLDER"] = folder
        os.chdir(folder)
        Path("venv").symlink_to(sys.prefix)
        os.environ["PATH"] = os.pathsep.join([f"{folder}/venv/bin", os.environ["PATH"]])
        for file in EXAMPLES.glob("*.py"):  # run as a user would, and without the paths of this machine
            shutil.copy(file, folder)
        Path("agents.py").write_text(PROGRAM)
        Path("evolution.py").write_text(POOL)
        with rw.page() as page, chromium() as browser:
            browser.open(page.url)
            for scene in SCENES:
                if not names or scene.name in names:
                    print(f"taking {scene.name}", flush=True)
                    _take(scene, page.url.partition("/?")[0], browser.driver)


@contextlib.contextmanager
def _folder() -> Generator[str]:
    """A new folder with a name that reads well in the pictures; it is gone at the end of the block."""
    folder = Path(tempfile.gettempdir(), "experiments")
    folder.mkdir(mode=0o700)
    try:
        yield str(folder)
    finally:
        shutil.rmtree(folder)


def _take(scene: Scene, base: str, driver: Any) -> None:
    if scene.prepare:
        scene.prepare()
    with _running(scene) as id:
        time.sleep(scene.after_s if scene.command else 0.0)
        for theme in ("light", "dark"):
            driver.add_cookie({"name": "ropewalk_theme", "value": theme, "path": "/"})
            driver.set_window_size(WIDTH, scene.height)
            driver.get(base + scene.path(id))
            time.sleep(scene.seen_s)
            target = FOLDER / f"{scene.name}{'' if theme == 'light' else '-dark'}.png"
            driver.save_screenshot(str(target))
            _finish(target, driver.execute_script(_BOTTOM))


def _finish(file: Path, bottom: float) -> None:
    """Cut a picture off after a panel, and keep 256 colours, which takes a third of the bytes.

    The most frequent ones, of backgrounds and text, are kept as they are.

    Args:
        file: that is changed.
        bottom: the row of pixels after which it is cut off; 0: nowhere.
    """
    with Image.open(file) as whole:
        part = whole.convert("RGB").crop((0, 0, whole.width, min(whole.height, int(bottom) or whole.height)))
        pixels = np.array(part)
        colors, counts = np.unique(pixels.reshape(-1, 3), axis=0, return_counts=True)
        frequent = colors[np.argsort(-counts)[:_NUM_EXACT]]
        others = part.quantize(256 - _NUM_EXACT, Image.Quantize.MAXCOVERAGE).getpalette() or []
        palette = Image.new("P", (1, 1))
        palette.putpalette([*map(int, frequent.flat), *others])
        numbers = np.array(part.quantize(palette=palette, dither=Image.Dither.NONE))
    for number, color in enumerate(frequent):  # the search for the nearest colour is not exact
        numbers[(pixels == color).all(axis=-1)] = number
    exact = Image.fromarray(numbers, "P")
    exact.putpalette(palette.getpalette() or [])
    exact.save(file, optimize=True)


@contextlib.contextmanager
def _running(scene: Scene) -> Generator[str]:
    if not scene.command:
        yield ""
        return
    with subprocess.Popen(["python", *scene.command], stdout=subprocess.DEVNULL) as process:
        try:
            yield _id_of(scene.thing, process.pid)
        finally:
            process.terminate()


def _id_of(thing: str, pid: int) -> str:
    """Wait until the thing runs that a process has started; returns its id."""
    end = time.monotonic() + _BEGIN_S
    with Launchers() as launchers:
        while time.monotonic() < end:
            for look in launchers.look({}):
                view = look.view
                if view and view.pid == pid and view.state == "running" and thing in (view.kind, view.name):
                    return look.id
            time.sleep(0.2)
    raise TimeoutError(f"nothing that is called {thing} runs")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="of views (default: all)")
    main(parser.parse_args().names)
