"""Plants mistakes in the deciders, one at a time, and sees whether their tests notice.

    python -m tests.mutants.run                    all of deciders.toml
    python -m tests.mutants.run task_table gd_sec  those whose names end so, in this order
    python -m tests.mutants.run --list restart     what would be planted
    python -m tests.mutants.run --stale            those that have changed since they were run last
    python -m tests.mutants.run --sample 80 queue  80 of its mutants, drawn at random, and the same ones each time

A mutant is killed if its tests fail, crash or do not end. One that survives shows what no test asks for; one that means
the same as the original is listed in `deciders.toml`, with the reason. Less than REACH killed is an error. Results are
kept in `table.md`.

Each mutant runs in a process that is forked from one which has imported what the tests need, but for the decider and
what needs it; the decider is given to it by an import hook. So no file is changed, and mutants run beside each other.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import fnmatch
import gc
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import pickle
import random
import resource
import select
import signal
import sys
import tempfile
import time
import tomllib
import traceback
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from types import CodeType

from tests.mutants.mutating import Mutant, mutants_of
from tests.mutants.table import TABLE, digest_of, read_rows, write_rows

ROOT = Path(__file__).parents[2]
DECIDERS = Path(__file__).with_name("deciders.toml")

REACH = 0.95
PRELOADED = (
    *("pytest", "_pytest.junitxml", "_pytest.unittest", "_pytest.pastebin", "_pytest.skipping", "pdb", "hypothesis"),
    *("numpy", "torch", "psutil", "msgspec", "cryptography.x509"),
)
CPU_S = 60
"""Tests take no longer to compute."""
PATIENCE = 4
"""A mutant that computes for longer than this multiple of the original's time, and five seconds, is in an endless
loop. What counts is the time of its own process, so other load does not matter."""
LOOK_S = 1.0
NUM_LOOKS = 30
"""A mutant waits for something that never comes if at this number of looks in a row, `LOOK_S` seconds apart, none of
its threads computes or waits for a processor."""
MODULES = "--- modules"
"""After this line, a process prints the modules that it has imported."""
MEMORY_BYTES = 3 << 30
"""An endless loop often fills a list."""


@dataclasses.dataclass(frozen=True, slots=True)
class Equal:
    """A mutant, or several alike, that no test can tell from the original."""

    was: str
    becomes: str
    """With `*` for any text."""
    why: str

    def covers(self, mutant: Mutant) -> bool:
        return mutant.was == self.was and fnmatch.fnmatchcase(mutant.becomes, self.becomes)


@dataclasses.dataclass(frozen=True, slots=True)
class Decider:
    """A module, and the tests that are to notice mistakes in it."""

    module: str
    tests: tuple[str, ...]
    equal: tuple[Equal, ...]
    root: Path = ROOT / "src"
    plugins: tuple[str, ...] = ()
    """Modules with the fixtures of these tests."""

    @property
    def name(self) -> str:
        return self.module.removeprefix("ropewalk.")

    @property
    def path(self) -> Path:
        return self.root / Path(*self.module.split(".")).with_suffix(".py")

    @property
    def digest(self) -> str:
        """What its score depends on."""
        return digest_of(
            [self.path, *(ROOT / test.partition("::")[0] for test in self.tests)], (self.tests, self.equal)
        )


@dataclasses.dataclass(slots=True)
class Score:
    """What became of the mutants of a decider."""

    num_mutants: int
    """How many there are, of which a sample may have been planted."""
    killed: int = 0
    survived: list[Mutant] = dataclasses.field(default_factory=list[Mutant])
    equal: int = 0
    unused: list[Equal] = dataclasses.field(default_factory=list[Equal])
    """Lines of the list that fit no mutant that survived; a sample does not show it."""

    @property
    def share(self) -> float:
        """Of those that are not equal to the original, how many were killed."""
        return self.killed / max(self.killed + len(self.survived), 1)

    @property
    def cells(self) -> list[object]:
        """What the table says of it."""
        num = self.killed + self.equal + len(self.survived)
        planted = num if num == self.num_mutants else f"{num} of {self.num_mutants}"
        return [planted, self.killed, self.equal, len(self.survived), f"{self.share:.1%}", datetime.date.today()]


def read_deciders(path: Path = DECIDERS) -> list[Decider]:
    return [
        Decider(
            one["module"],
            tuple(one["tests"]),
            tuple(Equal(**equal) for equal in one.get("equal", ())),
            ROOT / one.get("root", "src"),
            tuple(one.get("plugins", ())),
        )
        for one in tomllib.loads(path.read_text())["decider"]
    ]


class Planted(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Gives a module with other source."""

    def __init__(self, name: str, path: Path, source: str) -> None:
        self.name, self.path, self.source = name, path, source

    def find_spec(self, fullname: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        spec = importlib.util.spec_from_loader(fullname, self, origin=str(self.path))
        assert spec
        spec.has_location = True
        return spec

    def get_source(self, fullname: str) -> str:
        return self.source

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.source, str(self.path), "exec", dont_inherit=True)

    def is_package(self, fullname: str) -> bool:
        return False


class Withheld(importlib.abc.MetaPathFinder):
    """Refuses to import a module."""

    def __init__(self, name: str) -> None:
        self.name = name

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == self.name:
            raise ImportError(f"{fullname} is imported later, with a mistake")


def import_all_but(withheld: str, names: Sequence[str]) -> None:
    """Import modules, except one and those that need it: each process has them then, and imports only the rest."""
    sys.meta_path.insert(0, Withheld(withheld))
    for name in names:
        # pytest rewrites the assertions of tests when it imports them itself.
        if not name.startswith(("tests", "_pytest", "pytest")):
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    del sys.meta_path[0]
    gc.collect()
    gc.freeze()  # otherwise each process looks for garbage among the objects of torch: 0.2 s


def begin(decider: Decider, source: str, output: int, cpu_s: int) -> int:
    """Fork a process that runs the tests of a decider with this source; its id."""
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        os.setsid()
        os.dup2(output, 1)
        os.dup2(output, 2)
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        sys.meta_path.insert(0, Planted(decider.module, decider.path, source))
        import pytest

        # Deciders are pure: nothing of conftest.py, which looks for what is left behind, is needed, and it takes time.
        options = ["-x", "-q", "--tb=line", "--noconftest", "-p", "no:cacheprovider"]
        # Plugins that packages bring take 1.4 s to import; of them only the setting of this one is needed.
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        options += ["-p", "pytest_timeout", "-p", "tests.mutants.without_shrinking"]
        options += [word for plugin in decider.plugins for word in ("-p", plugin)]
        options += ["-m", "not lab and not soak and not timing", "-o", "timeout=0"]
        code = int(pytest.main([*options, *decider.tests]))
        print("\n".join([MODULES, *sys.modules]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)
    raise AssertionError


def ended(processes: Collection[int]) -> list[tuple[int, int]]:
    """Wait until some of these processes are over, and kill those that wait for ever; which are over, and how."""
    num_idle, look_at = dict.fromkeys(processes, 0), time.monotonic() + LOOK_S
    with contextlib.ExitStack() as opened:
        descriptors = [opened.enter_context(open(os.pidfd_open(pid), "rb", buffering=0)) for pid in processes]
        while True:
            select.select(descriptors, [], [], LOOK_S)
            over = [(pid, status) for pid, status in (os.waitpid(pid, os.WNOHANG) for pid in processes) if pid]
            if over:
                return [(pid, os.waitstatus_to_exitcode(status)) for pid, status in over]
            if time.monotonic() >= look_at:
                look_at = time.monotonic() + LOOK_S
                num_idle = {pid: num_idle[pid] + 1 if is_idle(pid) else 0 for pid in processes}
                for pid in processes:
                    if num_idle[pid] >= NUM_LOOKS:
                        os.kill(pid, signal.SIGKILL)


def is_idle(group: int) -> bool:
    """Whether all threads of a process group sleep: one that waits for a processor does not."""
    if _wants_processor(Path(f"/proc/{group}")):
        return False  # mostly it is the leader, and there is no need to read all of /proc for its children
    members = list[Path]()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it is over
            if _fields(stat)[2] == str(group):
                members.append(stat.parent)
    return bool(members) and not any(map(_wants_processor, members))


def _wants_processor(process: Path) -> bool:
    with contextlib.suppress(OSError):  # it is over
        return any(_fields(task / "stat")[0] in "RD" for task in (process / "task").iterdir())
    return False


def _fields(stat: Path) -> list[str]:
    """Return what follows on the name: state, parent, process group."""
    return stat.read_text().rpartition(")")[2].split()


def outcomes(
    decider: Decider, sources: Sequence[str], num_beside: int, cpu_s: int = CPU_S
) -> Iterator[tuple[int, int, str]]:
    """Run the tests with each of these sources; its number, its exit code, and what was printed."""
    waiting = list(enumerate(sources))[::-1]
    running: dict[int, int] = {}
    with tempfile.TemporaryDirectory(prefix="rw-mutants-") as folder:
        try:
            while waiting or running:
                while waiting and len(running) < num_beside:
                    number, source = waiting.pop()
                    with open(f"{folder}/{number}", "wb") as output:
                        running[begin(decider, source, output.fileno(), cpu_s)] = number
                for pid, code in ended(running):
                    number = running.pop(pid)
                    kill_group(pid)
                    printed = Path(f"{folder}/{number}")
                    yield number, code, printed.read_text(errors="replace")
                    printed.unlink()
        finally:
            for pid in running:
                kill_group(pid)
                os.waitpid(pid, 0)


def kill_group(pid: int) -> None:
    """End what a test has left."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _cpu_s_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def sample_of(mutants: Sequence[Mutant], num: int) -> Sequence[Mutant]:
    """Return at most `num` mutants, drawn at random: the same ones each time, and each set part of a larger one."""
    order = random.Random(0).sample(range(len(mutants)), len(mutants))
    return [mutants[number] for number in sorted(order[:num])]


def judge_apart(decider: Decider, num_beside: int, sample: int | None = None) -> Score:
    """Judge a decider in a process of its own, which has imported nothing that needs it."""
    sys.stdout.flush()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            with open(write, "wb") as result:
                pickle.dump(judge(decider, num_beside, sample), result)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    os.close(write)
    with open(read, "rb") as result:
        told = result.read()
    if os.waitpid(pid, 0)[1]:
        raise SystemExit(1)
    return pickle.loads(told)


def judge(decider: Decider, num_beside: int, sample: int | None = None) -> Score:
    """Plant each mutant of a decider, or a sample of this size.

    Raises:
        RuntimeError: the tests fail without a mutant, so that nothing can be learnt from them.
    """
    source = decider.path.read_text()
    before = 0.0
    for _ in range(2):  # the second time, as it is then for the mutants
        before = _cpu_s_of_children()
        for _, code, printed in outcomes(decider, [source], 1):
            said, _, modules = printed.rpartition(MODULES)
            if code:
                raise RuntimeError(f"the tests of {decider.module} do not pass without a mutant:\n{said[-4000:]}")
            import_all_but(decider.module, modules.split())
    cpu_s = int(5 + PATIENCE * (_cpu_s_of_children() - before))
    mutants = mutants_of(source)
    score = Score(len(mutants))
    if sample is not None:
        mutants = sample_of(mutants, sample)
    used: set[Equal] = set()
    began = time.monotonic()
    for count, (number, code, printed) in enumerate(
        outcomes(decider, [mutant.source for mutant in mutants], num_beside, cpu_s), 1
    ):
        mutant = mutants[number]
        if code not in (0, 1, 2) and code >= 0 and code != 70:  # pytest itself was not able to
            raise RuntimeError(f"pytest ended with {code} for {mutant.was!r} as {mutant.becomes!r}:\n{printed[-4000:]}")
        equal = next((one for one in decider.equal if one.covers(mutant)), None)
        if code:
            score.killed += 1
        elif equal:
            score.equal += 1
            used.add(equal)
        else:
            score.survived.append(mutant)
            print(
                f"{decider.path}:{mutant.line}: survived\n  - {mutant.was}\n  + {mutant.becomes}",
                flush=True,
            )
        if sys.stderr.isatty():
            print(f"\r{count}/{len(mutants)} {time.monotonic() - began:.0f} s", end="\r", file=sys.stderr)
    if len(mutants) == score.num_mutants:
        score.unused = [one for one in decider.equal if one not in used]
    return score


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Plant mistakes in deciders, and see whether tests notice.")
    parser.add_argument("names", nargs="*", help="ends of module names, such as task_table; default: all")
    parser.add_argument("--deciders", type=Path, default=DECIDERS, metavar="FILE", help="another list of them")
    parser.add_argument("--table", type=Path, default=TABLE, metavar="FILE", help="where results are kept")
    parser.add_argument("--list", action="store_true", help="only show the mutants")
    parser.add_argument("--stale", action="store_true", help="only those that have changed since they were run last")
    parser.add_argument("--beside", type=int, default=os.cpu_count() or 1, metavar="N", help="number at once")
    parser.add_argument(
        "--sample", type=int, metavar="N", help="at most N mutants of each, drawn at random with a fixed seed"
    )
    options = parser.parse_args(argv)
    listed = read_deciders(options.deciders)
    named = (one for name in options.names or [""] for one in listed if one.module.endswith(name))
    deciders = list(dict.fromkeys(named))
    if not deciders:
        parser.error(f"no decider has a name that ends with {' or '.join(options.names)}; see {options.deciders}")
    if options.stale:
        rows = read_rows(options.table)
        deciders = [one for one in deciders if rows.get(one.name, [""])[-1] != one.digest]
    if options.list:
        for decider in deciders:
            mutants = mutants_of(decider.path.read_text())
            for mutant in mutants:
                print(f"{decider.module}:{mutant.line}\n  - {mutant.was}\n  + {mutant.becomes}")
            print(f"{decider.module}: {len(mutants)} mutants", file=sys.stderr)
        return 0
    os.chdir(ROOT)
    for name in PRELOADED:
        __import__(name)
    falls_short = False
    for decider in deciders:
        began, digest = time.monotonic(), decider.digest
        score = judge_apart(decider, options.beside, options.sample)
        for equal in score.unused:
            print(
                f"{decider.module}: no mutant that survives is {equal.was!r} as {equal.becomes!r}; take it off the list"
            )
        falls_short |= score.share < REACH or bool(score.unused)
        rows = read_rows(options.table) | {decider.name: [decider.name, *score.cells, digest]}
        write_rows({one.name: rows[one.name] for one in listed if one.name in rows}, options.table)
        print(*rows[decider.name], f"{time.monotonic() - began:.0f} s", sep=" | ", flush=True)
    return int(falls_short)


if __name__ == "__main__":
    sys.exit(main())
