"""Queues, pipes, managers and locks between processes on three hosts, of which one is cut off or lost."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.lab import Lab
from tests.scenarios.hosts import cluster_of
from tests.scenarios.sites import SITES


def test_what_hosts_pass_to_each_other_does_not_pass_through_the_launcher(lab: Lab, tmp_path: Path) -> None:
    with cluster_of(lab, tmp_path) as cluster:
        script = cluster.launch(
            SITES
            + """
    import numpy as np

    NUM, NUM_LARGE = 2000, 4

    def produce(items, large, first, step):
        for number in range(first, NUM, step):
            items.put((number, bytes([number % 256]) * 10_000))
        for number in range(first, NUM_LARGE, step):
            large.put(np.arange(number, number + 10_000_000 // 8))

    def consume(items, seen):
        while (item := items.get()) is not None:
            number, words = item
            assert words == bytes([number % 256]) * 10_000
            seen.put((number, socket.gethostname()))

    def take_large(large):
        array = large.get()
        assert array.nbytes == 10_000_000 and (np.diff(array) == 1).all()
        array += 1
        return int(array[0]) - 1

    with session(hosts=3) as here:
        sites = Sites(here, 3)
        a, b, c = sites
        items, large, seen = Queue(100, session=here), Queue(session=here), Queue(session=here)
        for site in sites:
            site.do(len, "warm")
        say(a.name, b.name, c.name)
        assert sys.stdin.readline().strip() == "go"
        making = [a.begin(produce, items, large, first, 2) for first in (0, 1)]
        using = [site.begin(consume, items, seen) for site in (b, c, b, c)]
        whole = [site.begin(take_large, large) for site in (b, c, b, c)]
        [made.result(120) for made in making]
        [items.put(None) for _ in using]
        [used.result(120) for used in using]
        arrays = sorted(taken.result(120) for taken in whole)
        say("done")
        assert sys.stdin.readline().strip() == "tell"
        assert arrays == list(range(NUM_LARGE)), arrays
        told = [seen.get() for _ in range(NUM)]
        assert sorted(number for number, _ in told) == list(range(NUM)), "an item is missing, or came twice"
        assert seen.empty() and items.empty()
        per_host = [sum(host == site.name for _, host in told) for site in (b, c)]
        assert min(per_host) > NUM / 5, f"fair between the hosts: {per_host}"
        sites.end()
        [process.join() for process in sites.processes]
        """,
            slots=1,
        )
        keeper, b, _ = (cluster.host(name) for name in script.line().split())
        before = [machine.bytes_received() + machine.bytes_sent() for machine in (cluster.head, keeper, b)]
        script.tell("go")
        assert script.line() == "done"
        after = [machine.bytes_received() + machine.bytes_sent() for machine in (cluster.head, keeper, b)]
        head, depot, reader = (late - early for late, early in zip(after, before, strict=True))
        assert head < 1e6, f"{head:,} bytes crossed the launcher's wire"
        assert depot > 50e6, "the test looks at the wrong wire"
        assert reader > 20e6
        script.tell("tell")
        code, _, errors = script.end()
        assert code == 0, errors


def test_what_is_made_on_one_host_is_used_from_all(lab: Lab, tmp_path: Path) -> None:
    with cluster_of(lab, tmp_path) as cluster:
        script = cluster.launch(
            SITES
            + """
    import signal
    import numpy as np
    from ropewalk.sharing.managers import BaseManager, SyncManager

    class Simulator:
        def __init__(self, number):
            self.number, self.state = number, 0
        def step(self, by):
            if by == 1:  # all of them at once, or none
                vars(threading).setdefault("all_step", threading.Barrier(8)).wait(60)
            self.state += by
            if self.state > 10**6:
                raise OverflowError(f"simulator {self.number} has left its range")
            return self.state, socket.gethostname()

    class Simulators(SyncManager):
        pass

    Simulators.register("Simulator", Simulator)
    KEPT = []

    def start_manager():
        manager = Simulators()
        manager.start()
        KEPT.append(manager)  # it lives as long as this
        return [manager.Simulator(number) for number in range(8)], manager.dict(), manager.Lock()

    def step_all(simulators):
        futures = [one.step.future(1) for one in simulators]
        return [future.result(120) for future in futures]

    def count(table, lock, name):
        for _ in range(50):
            with lock:
                table[name] = table.get(name, 0) + 1
                table["all"] = table.get("all", 0) + 1

    def turns(condition, barrier, line, number, num):
        # Each waits for its turn: the sites write their numbers in a ring.
        barrier.wait(120)
        for turn in range(num):
            with condition:
                assert condition.wait_for(lambda: line.qsize() == turn * 3 + number, 20)
                line.put(number)
                condition.notify_all()
        return barrier.wait(120)

    def talk(connection, num):
        for number in range(num):
            connection.send((number, socket.gethostname()))
            assert connection.recv()[0] == number
        connection.close()

    def hear(connection):
        hosts = set()
        try:
            while True:
                number, host = connection.recv()
                hosts.add(host)
                connection.send((number, socket.gethostname()))
        except EOFError as error:
            return sorted(hosts), str(error)

    def answer(connection, num):
        # Each of several that hold one end answers some.
        for _ in range(num):
            question = connection.recv()
            connection.send((question, socket.gethostname()))
        return num

    def stop_in_recv(connection):
        # A process beside the site, which is killed before it takes anything.
        pid = os.fork()
        if pid == 0:
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGSTOP)).start()
            connection.recv()
            os._exit(0)
        while open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.01)
        return pid

    def end_it(pid):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    def wait_for(connection):
        from multiprocessing.connection import wait
        assert wait([connection], 20) == [connection]
        return connection.recv()

    def ask_with_array(connection, array):
        connection.send(array)
        return connection.recv()

    def answer_sum(connection):
        array = connection.recv()
        array += 1
        connection.send(float(array.sum()))

    def send_bytes(connection, num_bytes, times):
        for number in range(times):
            connection.send_bytes(bytes([number]) * num_bytes)

    def recv_bytes(connection):
        data = connection.recv_bytes()
        assert data == data[:1] * len(data)
        return data[0], len(data)

    def depot_of(object):
        return object._reference.label.rpartition(" on ")[2]

    with session(hosts=3) as here:
        sites = Sites(here, 3)
        a, b, c = sites

        # Made on b, used from all.
        made = b.do(Queue), b.do(Condition), b.do(Barrier, 3), b.do(rw.Pipe)
        line, condition, barrier, (mine, its) = made
        assert [depot_of(one) for one in (line, condition, barrier, mine, its)] == [b.name] * 5
        ring = [site.begin(turns, condition, barrier, line, number, 5) for number, site in enumerate((a, b, c))]
        assert sorted(future.result(120) for future in ring) == [0, 1, 2]
        assert [line.get() for _ in range(15)] == [0, 1, 2] * 5

        # A pipe between a and c, which lives on b; its end is heard when the last handle is closed.
        heard, talked = c.begin(hear, its), a.begin(talk, mine, 200)
        mine.close()
        its.close()
        hosts, ended = heard.result(120)
        assert talked.result(120) is None and hosts == [a.name], hosts
        assert f"on {a.name})" in ended, ended

        # One end of a pipe on two hosts, that of its depot among them.
        mine, its = b.do(rw.Pipe)
        answering = [site.begin(answer, its, 50) for site in (a, b)]
        for number in range(100):
            mine.send(number)
        answers = [mine.recv() for _ in range(100)]
        assert sorted(number for number, _ in answers) == list(range(100))
        assert {host for _, host in answers} == {a.name, b.name}
        assert [one.result(120) for one in answering] == [50, 50]

        # From the host of a pipe to another one, and back: arrays, bytes, and more of them than there is room for.
        for there, here_ in ((b, c), (c, b)):
            summing = here_.begin(answer_sum, its)
            assert there.do(ask_with_array, mine, np.arange(1_000_000.0)) == 500_000_500_000
            summing.result(120)
            for size in (0, 10, 100_000, 5_000_000):
                sending = there.begin(send_bytes, mine, size or 1, 20)
                assert [here_.do(recv_bytes, its) for _ in range(20)] == [(number, size or 1) for number in range(20)]
                assert sending.result(120) is None
            waiting = here_.begin(wait_for, its)
            there.do(mine.send, "it comes")
            assert waiting.result(120) == "it comes"

        # What was on its way to a process of another host that is killed goes to the next one.
        pid = c.do(stop_in_recv, its)
        mine.send("once")
        taking = c.begin(its.recv)
        c.do(end_it, pid)
        assert taking.result(120) == "once"

        # A manager that a has started.
        simulators, table, lock = a.do(start_manager)
        for site in (b, c, sites):
            stepped = site.do(step_all, simulators) if site is not sites else step_all(simulators)
            assert len({host for _, host in stepped}) == 1
        assert [state for state, _ in stepped] == [3] * 8
        try:
            c.do(simulators[5].step, 10**7)
            raise AssertionError("it is out of range")
        except OverflowError as error:
            assert str(error) == "simulator 5 has left its range"
        counting = [site.begin(count, table, lock, site.name) for site in sites]
        [future.result(120) for future in counting]
        assert dict(table.items()) == {"all": 150, a.name: 50, b.name: 50, c.name: 50}
        sites.end()
        [process.join() for process in sites.processes]
        say("fine")
        """,
            slots=2,
        )
        assert script.line() == "fine"
        code, _, errors = script.end()
        assert code == 0, errors


#: Two of three sites are lost, while calls wait at objects of their hosts, and elsewhere for what they hold.
LOSING = """
    import numpy as np

    class Things:
        # One of each, in the depot of the site where they are made.
        def __init__(self):
            self.items, self.full, self.lock, self.event = Queue(), Queue(1), Lock(), Event()
            self.condition, self.barrier, self.semaphore = Condition(), Barrier(3), Semaphore(0)
            self.ends = rw.Pipe()
            self.full.put("there is no room beside this")
            self.rounds = Queue()

    def wait_at(condition):
        condition.acquire()
        condition.wait()

    def take_lock(lock):
        with lock:
            return [text for text in WARNINGS if text.startswith(lock._reference.label + " ")]

    def rounds(items, what, until):
        # How many of many rounds through a queue were made while hosts were silent that counted as living.
        num = 0
        while not noted(until):
            items.put(what)
            items.get()
            num += noted("cut") and not noted("given up")
        return num

    def put_until_it_fails(items):
        while True:
            items.put(1)

    def noted(what):
        return os.path.exists(os.path.join(FOLDER, what))

    def waits(far):
        # For what does not come.
        return (
            ("get", far.items.get), ("put", far.full.put, 1), ("acquire", far.lock.acquire),
            ("event", far.event.wait), ("condition", wait_at, far.condition), ("barrier", far.barrier.wait, 60),
            ("semaphore", far.semaphore.acquire), ("recv", far.ends[0].recv), ("poll", far.ends[1].poll, None),
            ("large items", rounds, far.rounds, np.zeros(500_000), "never"),
        )

    def outcomes(waiting):
        for name, future in waiting.items():
            error = future.exception(60)
            yield name, type(error).__name__, str(error)

    def begin_held(site, near):
        # What a site that will be lost holds elsewhere, and who waits for that.
        assert site.do(near.lock.acquire)
        assert near.lock.holder().endswith(f"on {site.name})")
        mine, its = keeper.do(rw.Pipe)
        held = [site.begin(near.items.get), site.begin(near.barrier.wait), site.begin(its.recv)]
        its.close()
        released = {
            "lock": keeper.begin(take_lock, near.lock), "lock here": sites.begin_here(take_lock, near.lock),
            "barrier": keeper.begin(near.barrier.wait), "pipe": keeper.begin(mine.recv),
        }
        return held, released

    keep_warnings()
    with session(hosts=3) as here:
        sites = Sites(here, 3)
        keeper, *gone = sites
        far, near = [site.do(Things) for site in gone], [keeper.do(Things) for site in gone]
        rounds_here = Queue(session=here)
        going_on = {
            "launcher": sites.begin_here(rounds, rounds_here, 1, "over"),
            "keeper": keeper.begin(rounds, near[0].rounds, 1, "over"),
        }
        # However many calls wait, pings must have room beside them.
        event = Event(session=here)
        many = [sites.begin_here(event.wait) for _ in range(600)]
        held, released = zip(*map(begin_held, gone, near))
        waiting = {}
        for site, things in zip(gone, far):
            site.do(things.lock.acquire)
            for place, begin in (("keeper", keeper.begin), ("launcher", sites.begin_here)):
                for name, act, *args in waits(things):
                    waiting[site.name, f"{name} by {place}"] = begin(act, *args)
        time.sleep(1.0)  # nobody can see from here whether they wait yet
        for future in (*going_on.values(), *released[0].values(), *released[1].values(), *waiting.values()):
            assert not future.done(), future
        say(*(site.name for site in gone))

        assert sys.stdin.readline().strip() == "cut"
        note("cut", "")
        for site, things, rest in zip(gone, near, released):
            rest["item"] = keeper.begin(things.items.get)
            things.items.put("once")  # it goes to who waits longest, who is not there any more
        for site, things in zip(gone, far):
            waiting[site.name, "acquire by launcher, too late"] = sites.begin_here(things.lock.acquire)
            waiting[site.name, "puts by keeper"] = keeper.begin(put_until_it_fails, things.items)
            waiting[site.name, "puts by launcher"] = sites.begin_here(put_until_it_fails, things.items)
        outcome = list(outcomes(waiting))
        note("given up", "")
        say(json.dumps(outcome))
        for rest in released:
            assert rest["item"].result(120) == "once"
            warned = rest["lock"].result(120) + rest["lock here"].result(120)
            say(json.dumps([warned, str(rest["barrier"].exception(10)), str(rest["pipe"].exception(10))]))
        # Nobody comes back to them.
        later = {
            (site.name, place): begin(things.items.qsize)
            for site, things in zip(gone, far)
            for place, begin in (("keeper", keeper.begin), ("launcher", sites.begin_here))
        }
        say(json.dumps(list(outcomes(later))))

        assert sys.stdin.readline().strip() == "go on"
        for things in near:
            for number in range(10):
                things.items.put(number)
            assert [keeper.do(things.items.get) for _ in range(10)] == list(range(10))
            assert things.items.empty() and not things.lock.locked()
        assert not any(one.done() for some in held for one in some)
        for one in (keeper.do(Queue), Queue(session=here)):
            one.put(5)
            assert keeper.do(one.get) == 5
        assert not any(future.done() for future in (*going_on.values(), *many))
        event.set()
        assert all(future.result(120) for future in many)
        note("over", "")
        say(json.dumps([(name, future.result(120)) for name, future in going_on.items()]))
        sites.end(keeper)
        [process.join() for process in sites.processes]
        say(json.dumps(sorted(process.exitcode for process in sites.processes)))
"""


def test_calls_to_hosts_that_are_gone_end_by_name_and_all_others_go_on(lab: Lab, tmp_path: Path) -> None:
    with cluster_of(lab, tmp_path) as cluster:
        script = cluster.launch(SITES + LOSING, slots=1)
        gone = script.line().split()
        cut, lost = map(cluster.host, gone)
        cluster.spool.deaf.add(cut)
        lab.cut(cut)
        lab.plug(lost)
        script.tell("cut")
        waited = json.loads(script.line())
        assert len(waited) == 46
        for (name, what), kind, text in waited:
            assert kind == "PeerLost", f"{what} ended with {kind}: {text}"
            assert f" on {name} is gone" in text, f"{what} does not name {name}: {text}"
        for name in gone:
            warned, barrier, pipe = json.loads(script.line())
            site = rf"site\.\d \(pid \d+ on {name}\)"
            assert len(warned) == 1, f"only the next owner is told: {warned}"
            assert re.search(rf"held by {site}, which is gone", warned[0])
            assert re.search(site, barrier)
            assert re.search(rf"{site}, which is gone", pipe)
        for (name, _), kind, text in json.loads(script.line()):
            assert kind == "PeerLost"
            assert f" on {name} is gone" in text
        lab.heal(cut)
        script.tell("go on")
        for what, num_rounds in json.loads(script.line()):
            assert num_rounds > 10, f"{what} was held up by hosts that it has nothing to do with"
        assert json.loads(script.line()) == [-9, -9, 0]
        code, _, errors = script.end()
        assert code == 0, errors
