"""A study of forest fires, written for `multiprocessing`: change the one line that imports it, and it runs on ropewalk.

    python examples/forest_fires.py

    planner ── tasks ──▶ 3 simulators ── fires ──▶ main        1 survey      queues, shared counters, locks, barrier
    main ◀── Pipe ──▶ ranger                                   2 questions   a process that answers, and may be wrong
    3 inspectors ── proxies ──▶ manager's process              3 inspection  dict, list, Namespace, own class
    main ── map ──▶ pool of 2                                  4 extremes    Pool
    2 stations ── bytes, shared memory ──▶ main                5 stations    wait, SharedMemory, Listener and Client
    main ── terminate, kill ──▶ 4 guards                       6 ends        exit codes

How likely is it that a fire on the left edge of a forest comes through to the right edge? It depends on the density of
the trees, and jumps from never to always at about 0.59. Whatever runs first, the printed lines are the same.
"""

from __future__ import annotations

import functools
import importlib
import multiprocessing as mp  # or: import ropewalk as mp
import queue
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

# The line above is the only one that names the library: its submodules are found through it.
connection: Any = importlib.import_module(f"{mp.__name__}.connection")
managers: Any = importlib.import_module(f"{mp.__name__}.managers")
shared_memory: Any = importlib.import_module(f"{mp.__name__}.shared_memory")

SIZE = 32
DENSITIES = (0.45, 0.55, 0.60, 0.65, 0.75)
SEEDS = range(8)
SIMULATORS, LICENCES = 3, 2

say = functools.partial(print, flush=True)


class Fire(NamedTuple):
    """What became of a forest."""

    burnt: int
    came_through: bool


def burn(density: float, seed: int) -> Fire:
    """Plants a forest and lights its left edge.

    Raises:
        ValueError: there is no such density.
    """
    if not 0 <= density <= 1:
        raise ValueError(f"density is {density}, but a share of the ground is between 0 and 1")
    chance = random.Random(seed)
    trees = {(x, y) for x in range(SIZE) for y in range(SIZE) if chance.random() < density}
    burning, burnt = [tree for tree in trees if tree[0] == 0], set[tuple[int, int]]()
    while burning:
        x, y = burning.pop()
        if (x, y) in trees:
            trees.remove((x, y))
            burnt.add((x, y))
            burning += [(x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1)]
    return Fire(len(burnt), any(x == SIZE - 1 for x, _ in burnt))


# ---------------------------------------------------------------- 1: survey


class Tally:
    """Fires that came through, by density; the lock is taken again by who holds it."""

    def __init__(self) -> None:
        self.lock = mp.RLock()
        self.counts: Any = mp.Array("i", len(DENSITIES), lock=False)

    def add(self, index: int) -> None:
        with self.lock:
            before = self.total()
            self.counts[index] += 1
            assert self.total() == before + 1, "somebody else counted meanwhile"

    def total(self) -> int:
        with self.lock:
            return sum(self.counts)


@dataclass
class Board:
    """What the processes of the survey share."""

    tasks: Any  # JoinableQueue
    fires: Any  # Queue
    names: Any  # SimpleQueue
    ready: Any  # Barrier
    go: Any  # Event
    licences: Any  # Semaphore
    at_work: Any  # Array: how many hold a licence, and the most that ever did
    progress: Any  # Condition, over `done`
    done: Any  # Value
    tally: Tally


def plan(board: Board) -> None:
    board.go.wait()
    for index, _ in enumerate(DENSITIES):
        for seed in SEEDS:
            board.tasks.put((index, seed))
    for _ in range(SIMULATORS):
        board.tasks.put(None)
    board.tasks.close()


class Simulator(mp.Process):
    """Burns forests until there is none left."""

    def __init__(self, board: Board) -> None:
        super().__init__()
        self.board = board

    def run(self) -> None:
        board, parent = self.board, mp.parent_process()
        assert parent is not None
        board.names.put(f"{mp.current_process().name}, child of {parent.name}")
        board.ready.wait()
        while (task := board.tasks.get()) is not None:
            index, seed = task
            with board.licences:
                self.count_me(+1)
                fire = burn(DENSITIES[index], seed)
                self.count_me(-1)
            if fire.came_through:
                board.tally.add(index)
            board.fires.put((DENSITIES[index], seed, fire))
            with board.progress:
                board.done.value += 1
                board.progress.notify_all()
            board.tasks.task_done()
        board.tasks.task_done()

    def count_me(self, change: int) -> None:
        at_work = self.board.at_work
        with at_work.get_lock():
            at_work[0] += change
            at_work[1] = max(at_work)


def survey() -> None:
    board = Board(
        mp.JoinableQueue(4),
        mp.Queue(),
        mp.SimpleQueue(),
        mp.Barrier(SIMULATORS + 1),
        mp.Event(),
        mp.Semaphore(LICENCES),
        mp.Array("i", 2),
        mp.Condition(mp.Lock()),
        mp.Value("i", 0),
        Tally(),
    )
    planner = mp.Process(target=plan, args=(board,))
    simulators = [Simulator(board) for _ in range(SIMULATORS)]
    for process in (planner, *simulators):
        process.start()
    board.ready.wait()
    for name in sorted(board.names.get() for _ in range(SIMULATORS)):
        say(name)
    say("running:", ", ".join(sorted(process.name for process in mp.active_children())))
    assert board.tasks.empty() and not board.go.is_set()
    board.go.set()
    total = len(DENSITIES) * len(SEEDS)
    with board.progress:
        say("half of the forests have burned:", board.progress.wait_for(lambda: board.done.value >= total // 2, 60))
    board.tasks.join()
    fires = sorted(board.fires.get(timeout=60) for _ in range(total))
    for process in (planner, *simulators):
        process.join()
    say("exit codes:", [process.exitcode for process in (planner, *simulators)])
    try:
        board.fires.get_nowait()
    except queue.Empty:
        say("no fire is left in the queue")
    for index, density in enumerate(DENSITIES):
        mine = [fire for at, _, fire in fires if at == density]
        through = sum(fire.came_through for fire in mine)
        assert through == board.tally.counts[index]
        mean = sum(fire.burnt for fire in mine) / len(mine)
        say(f"  {density:.2f}: {mean:6.1f} burnt, {through} of {len(mine)} came through")
    say("came through:", board.tally.total(), "of", board.done.value)
    say("simulators at work never exceeded the licences:", 0 < board.at_work[1] <= LICENCES)


# ---------------------------------------------------------------- 2: questions


def answer(link: Any) -> None:
    """A ranger: answers questions until the line is closed; a wrong one gets its exception back."""
    while True:
        try:
            density, seed = link.recv()
        except EOFError:
            print("the ranger says good night")
            return
        try:
            link.send(burn(density, seed))
        except ValueError as error:
            link.send(error)


def questions() -> None:
    mine, theirs = mp.Pipe()
    ranger = mp.Process(target=answer, args=(theirs,), name="ranger", daemon=True)
    ranger.start()
    theirs.close()  # only the ranger has it now: when one side is closed, the other one hears of it
    for density in (0.5, 1.0, 1.5):
        mine.send((density, 7))
        assert mine.poll(60)
        said = mine.recv()
        say(f"a fire at {density}:", f"{type(said).__name__}: {said}" if isinstance(said, Exception) else said)
    mine.close()
    ranger.join()
    say("the ranger has gone home:", ranger.exitcode)
    try:
        mine.send((0.5, 7))
    except OSError as error:
        say(f"{type(error).__name__}: {error}")


# ---------------------------------------------------------------- 3: inspection


class Statistics:
    """Lives in the manager's process, and is used through proxies."""

    def __init__(self, unit: str) -> None:
        self.unit = unit
        self.values: list[float] = []

    def add(self, value: float) -> int:
        self.values.append(value)
        return len(self.values)

    def mean(self) -> str:
        if not self.values:
            raise ZeroDivisionError("no value has been added")
        return f"{sum(self.values) / len(self.values):.2f} {self.unit}"


class StudyManager(managers.SyncManager):
    """A manager that also serves our own class."""


StudyManager.register("Statistics", Statistics)


def inspect(number: int, reports: Any, rules: Any, statistics: Any, lock: Any, count: Any) -> None:
    for seed in range(number, rules.forests, rules.inspectors):
        fire = burn(rules.density, seed)
        statistics.add(fire.burnt)
        reports[f"inspector {number}"].append(fire.burnt)  # a list in a dict: a proxy in a proxy
        with lock:
            count.value += 1
            reports["came through"] += fire.came_through


def inspection() -> None:
    with StudyManager() as manager:
        rules = manager.Namespace(density=0.6, forests=12, inspectors=3)
        reports, lock, count = manager.dict({"came through": 0}), manager.Lock(), manager.Value("i", 0)
        statistics = manager.Statistics("trees")
        try:
            statistics.mean()
        except ZeroDivisionError as error:
            say(f"{type(error).__name__}: {error}")
        inspectors: list[Any] = []
        for number in range(rules.inspectors):
            reports[f"inspector {number}"] = manager.list()
            arguments = (number, reports, rules, statistics, lock, count)
            inspectors.append(mp.Process(target=inspect, args=arguments, name=f"inspector {number}"))
            inspectors[-1].start()
        for process in inspectors:
            process.join()
        for name in sorted(reports.keys()):
            say(f"  {name}: {reports[name] if name == 'came through' else list(reports[name])}")
        say("forests:", count.value, "mean:", statistics.mean())
        try:
            reports["nobody"]
        except KeyError as error:
            say(f"{type(error).__name__}: {error}")
        orders = manager.Queue()
        orders.put(["rake", {"by": "noon"}])
        say("orders:", orders.get(), "then empty:", orders.empty())


# ---------------------------------------------------------------- 4: extremes


def set_density(density: float) -> None:
    global chosen_density
    chosen_density = density


def burnt_at_chosen_density(seed: int) -> int:
    return burn(chosen_density, seed).burnt


def extremes() -> None:
    with mp.Pool(2, initializer=set_density, initargs=(0.6,)) as pool:
        burnt = pool.map(burnt_at_chosen_density, range(30), chunksize=4)
        say("most and least at 0.6:", max(burnt), min(burnt))
        say("the same in any order:", sorted(pool.imap_unordered(burnt_at_chosen_density, range(30))) == sorted(burnt))
        say("a full forest:", pool.starmap(burn, [(1.0, 1), (0.0, 1)]))
        later = pool.apply_async(burn, (-0.1, 1))
        try:
            later.get(60)
        except ValueError as error:
            say(f"{type(error).__name__}: {error}; worked: {later.successful()}")
        try:
            pool.apply_async(time.sleep, (60,)).get(0.01)
        except mp.TimeoutError as error:
            say(type(error).__name__)


# ---------------------------------------------------------------- 5: stations


def watch(seed: int, line: Any, map_name: str, address: Any) -> None:
    """A station: draws its part of a map that all share, reports by its line, and signs off at the main station."""
    chance = random.Random(seed)
    row = bytes(chance.choice(b".T") for _ in range(SIZE))
    shared = shared_memory.SharedMemory(map_name)
    shared.buf[seed * SIZE : (seed + 1) * SIZE] = row
    shared.close()
    line.send_bytes(b"drawn by %d" % seed)
    line.close()
    with connection.Client(address, authkey=mp.current_process().authkey) as signing_off:
        signing_off.send(("over and out", seed))
        assert signing_off.recv() == "good night"


def stations() -> None:
    shared = shared_memory.SharedMemory(create=True, size=2 * SIZE)
    with connection.Listener(authkey=mp.current_process().authkey) as listener:
        lines: dict[Any, int] = {}
        sentinels: dict[int, int] = {}
        processes: list[Any] = []
        for seed in (0, 1):
            reader, writer = mp.Pipe(duplex=False)
            process = mp.Process(target=watch, args=(seed, writer, shared.name, listener.address))
            process.start()
            writer.close()
            lines[reader] = sentinels[process.sentinel] = seed
            processes.append(process)
        for _ in processes:
            with listener.accept() as signing_off:
                assert signing_off.recv()[0] == "over and out"
                signing_off.send("good night")
    seen: list[str] = []
    while lines or sentinels:
        for ready in connection.wait([*lines, *sentinels]):
            if ready in sentinels:
                seen.append(f"station {sentinels.pop(ready)} has ended")
                continue
            try:
                seen.append(f"line {lines[ready]}: {ready.recv_bytes().decode()}")
            except EOFError:
                seen.append(f"line {lines.pop(ready)}: nobody is there any more")
    for line in sorted(seen):
        say(" ", line)
    for process in processes:
        process.join()
    for seed in (0, 1):
        say(" ", bytes(shared.buf[seed * SIZE : (seed + 1) * SIZE]).decode())
    shared.close()
    shared.unlink()


# ---------------------------------------------------------------- 6: ends


def guard(up: Any, order: str) -> None:
    up.release()
    if order == "leave":
        sys.exit(3)
    if order == "stay":
        time.sleep(600)


def ends() -> None:
    up = mp.Semaphore(0)
    orders = ("go", "leave", "stay", "stay")
    guards = [mp.Process(target=guard, args=(up, order), name=f"guard {n}") for n, order in enumerate(orders)]
    say("before they start:", [process.exitcode for process in guards], [process.is_alive() for process in guards])
    for process in guards:
        process.start()
    for _ in guards:
        up.acquire()
    guards[2].join(0.01)
    say("a guard who stays:", guards[2].is_alive(), guards[2].exitcode)
    guards[2].terminate()
    guards[3].kill()
    for process in guards:
        process.join()
    say("exit codes:", [process.exitcode for process in guards])
    say("nobody is left:", mp.active_children())
    guards[0].close()
    try:
        guards[0].join()
    except ValueError as error:
        say(f"{type(error).__name__}: {error}")
    keys = mp.BoundedSemaphore(1)
    try:
        keys.release()
    except ValueError as error:
        say(f"{type(error).__name__}: {error}")


PARTS = (survey, questions, inspection, extremes, stations, ends)


def main(names: Sequence[str]) -> None:
    mp.set_start_method("spawn")
    for part in PARTS:
        if not names or part.__name__ in names:
            say(f"# {part.__name__}")
            part()


if __name__ == "__main__":
    mp.freeze_support()
    main(sys.argv[1:])
